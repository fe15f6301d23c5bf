"""Batches of a rehearsal that are not what was asked for, and findings behind their memory."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.rehearse.scheduled_batches import ScheduledDeployment
from harness.runs.rehearse.deployment import Deployment
from harness.runs.rehearse.deployment_rehearsal import DeploymentRehearsal
from harness.runs.rehearse.graph_buckets import REPLAY_PHASE
from harness.runs.rehearse.threshold_search import FullSizeBatch
from harness.sanitizer.device.memory import LEDGER
from harness.store.rehearse.values import DeploymentResult, FindingRank, RehearsalFinding

GIGABYTE = 10**9


def make_mode(name: str) -> Any:
    return SimpleNamespace(
        name=name, is_decode=lambda: name == "DECODE", is_mixed=lambda: name == "MIXED"
    )


def make_model(mode: str, requests: int) -> tuple[ScheduledDeployment, list[Any]]:
    """Return a model whose scheduler chooses a batch of a mode, and the batches that it ran."""
    batch = SimpleNamespace(forward_mode=make_mode(mode), reqs=[None] * requests)
    ran: list[Any] = []
    model: Any = object.__new__(ScheduledDeployment)
    model.scheduler = SimpleNamespace(
        waiting_queue=[],
        running_batch=batch,
        last_batch=batch,
        tree_cache=None,
        get_next_batch_to_run=lambda **_: SimpleNamespace(running_batch=batch, batch_to_run=batch),
        run_batch=ran.append,
    )
    model._drafts = SimpleNamespace(score=contextlib.nullcontext)
    request = SimpleNamespace(sampling_params=SimpleNamespace(normalize=str), output_ids=[])
    model.runner = SimpleNamespace()
    model.one_batch = SimpleNamespace(extend=lambda *_: (None, None, SimpleNamespace()))
    for name in ("_restart", "_queue", "_lengthen", "_write_slots"):
        setattr(model, name, lambda *_: None)
    model._make_long_request = lambda *_: request
    return model, ran


@pytest.mark.parametrize(
    ("method", "mode", "requests", "problem"),
    [
        ("speculate", "DECODE", 4, ""),
        ("speculate", "DECODE", 3, "mode DECODE with 3 requests, not a round of 4 requests"),
        ("speculate", "EXTEND", 4, "mode EXTEND with 4 requests, not a round of 4 requests"),
        ("mix", "MIXED", 4, ""),
        ("mix", "MIXED", 3, "mode MIXED with 3 requests, not one of prefill with decode, of 3"),
        ("mix", "EXTEND", 4, "mode EXTEND with 4 requests, not one of prefill with decode"),
    ],
)
def test_a_round_and_a_mixed_chunk_are_of_all_requests(
    method: str, mode: str, requests: int, problem: str
) -> None:
    model, ran = make_model(mode, requests)
    sizes = (4, 16, 8) if method == "mix" else (4, 16)
    if not problem:
        getattr(model, method)(*sizes)
        assert len(ran) == 1
        return
    with pytest.raises(RuntimeError, match=f"a batch of {problem}"):
        getattr(model, method)(*sizes)
    assert ran == []


def test_a_part_of_a_round_that_a_release_calls_otherwise_is_an_error() -> None:
    worker = SimpleNamespace(draft_worker=SimpleNamespace(draft=print), verify=print)
    model: Any = object.__new__(ScheduledDeployment)
    model.scheduler = SimpleNamespace(draft_worker=worker)
    with pytest.raises(RuntimeError, match="has no method _draft_extend_for_decode"):
        model._name_parts()
    worker.draft_worker._draft_extend_for_decode = print
    model._name_parts()


def test_layers_that_prepare_a_batch_are_not_counted_with_it() -> None:
    counts = [(3, 2), (61, 54)]
    rehearsal: Any = object.__new__(DeploymentRehearsal)
    rehearsal.result = DeploymentResult("m", "m", "H200", 8, card_memory=GIGABYTE)
    rehearsal.model = SimpleNamespace(runner=None)
    rehearsal.launcher = SimpleNamespace(is_recording=False, phase="")
    rehearsal.layers = SimpleNamespace(take_counts=lambda: counts.pop(0))
    with rehearsal._phase("speculation", "a round"):
        rehearsal._begin_recording()
    [phase] = rehearsal.result.phases
    assert (phase.layers, phase.passed_layers) == (61, 54)


def make_rehearsal(phase: str, setting: str, findings: list[RehearsalFinding]) -> Any:
    """Make a rehearsal of one batch of 230 GB on a card of 140 GB, which shows these findings."""
    rehearsal: Any = object.__new__(DeploymentRehearsal)
    rehearsal.deployment, rehearsal.phases = Deployment("m"), None
    rehearsal.result = DeploymentResult(
        *("m", "m", "H200", 8),
        memory={"pools": 80 * GIGABYTE},
        settings={"slots": 8},
        card_memory=140 * GIGABYTE,
    )
    rehearsal.model = SimpleNamespace(runner=None)
    rehearsal.launcher = SimpleNamespace(list_findings=lambda: findings, is_recording=False)
    batch = FullSizeBatch(phase, "", setting, 8, lambda _: None)
    rehearsal._list_batches = lambda: [batch]
    rehearsal.layers = SimpleNamespace(take_counts=lambda: (0, 0))
    rehearsal._settings = SimpleNamespace(get_peak=lambda phase: 230 / 140)
    return rehearsal


def test_a_search_that_fails_leaves_the_card_its_limit() -> None:
    def search(*_: object) -> list[float]:
        assert not LEDGER.is_limited
        raise KeyError("no such row")

    finding = RehearsalFinding("IntegerOverflow", "decode", "m:walk", "wraps", fits=False)
    rehearsal = make_rehearsal("decode", "--max-running-requests", [finding])
    rehearsal._settings.search = search
    assert LEDGER.is_limited
    with pytest.raises(KeyError, match="no such row"):
        rehearsal._rehearse_batches()
    assert LEDGER.is_limited


@pytest.mark.parametrize(
    ("phase", "setting", "failure", "thresholds", "rank"),
    [
        (REPLAY_PHASE, "", "", True, FindingRank.POSSIBLE),  # no graph is smaller
        ("decode", "--max-running-requests", "no such row", True, FindingRank.NEAR),
        ("decode", "--max-running-requests", "", False, FindingRank.NEAR),
    ],
)
def test_what_no_search_looks_at_is_ranked_by_memory_too(
    phase: str, setting: str, failure: str, thresholds: bool, rank: FindingRank
) -> None:
    """A launch behind 90 GB that do not fit beside a pool of 80 GB: no server makes it.

    It is near if a smaller batch may fit and make it.
    """
    finding = RehearsalFinding("IntegerOverflow", phase, "m:walk", "wraps", fits=False)

    def make(size: int) -> None:
        if failure:
            raise ValueError(failure)

    rehearsal = make_rehearsal(phase, setting, [finding])
    rehearsal.deployment = Deployment("m", thresholds=thresholds)
    rehearsal._list_batches = lambda: [FullSizeBatch(phase, "", setting, 8, make)]
    rehearsal._rehearse_batches()
    assert [bool(one.failure) for one in rehearsal.result.phases] == [bool(failure)]
    assert finding.rank is rank
    assert "the batch needs 90.0 GB more than the card has" in finding.headline
