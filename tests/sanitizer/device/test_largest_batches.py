"""The batches that a deployment's limits allow: names, sizes, settings, and what makes each."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.rehearse.full_size_batches import FullSizeModel
from fixtures.rehearse.scheduled_batches import ScheduledDeployment
from harness.runs.rehearse.graph_buckets import GraphCaptures, PrefillCaptures
from harness.runs.rehearse.largest_batches import LargestBatches
from harness.runs.rehearse.threshold_search import FullSizeBatch

LIMITS = {"chunk": 100, "requests": 4, "context": 1008, "slots": 2000, "page": 1}
SMALL = "prefill small graph"
STEPS = (
    *("extend_chunk", "extend_behind_prefix", "decode"),
    *("extend_scheduled_chunk", "extend_scheduled_behind_prefix", "mix", "speculate"),
)


def make_model(kind: type[FullSizeModel]) -> tuple[Any, list[Any]]:
    """Return a model that makes no batch, and the steps that it was asked for."""
    model: Any = object.__new__(kind)
    model.runner = SimpleNamespace(
        max_total_num_tokens=LIMITS["slots"], req_to_token_pool=SimpleNamespace()
    )
    steps: list[Any] = []
    for name in STEPS:
        setattr(model, name, lambda *sizes, name=name, **more: steps.append((name, *sizes, more)))
    return model, steps


def make_captures(sizes: list[int]) -> GraphCaptures:
    captures = GraphCaptures(SimpleNamespace())  # type: ignore[arg-type]
    captures.buckets = sizes
    return captures


def record_required_replays(captures: GraphCaptures) -> list[int]:
    """Return a list that gets the size of each graph that has to be replayed."""
    sizes: list[int] = []

    def require_replay(size: int) -> Any:
        sizes.append(size)
        return contextlib.nullcontext()

    captures.require_replay = require_replay  # type: ignore[method-assign]
    return sizes


def describe_batch(batch: FullSizeBatch) -> tuple[str, str, str, int]:
    return batch.phase, batch.described, batch.setting, batch.size


def test_decodes_end_where_the_states_of_linear_attention_are_kept() -> None:
    """Behind 447 tokens comes the 448th, at a multiple of 64."""
    model, steps = make_model(FullSizeModel)
    model.runner.req_to_token_pool.enable_mamba_extra_buffer = True
    model.settings = SimpleNamespace(mamba_track_interval=64)
    batches = LargestBatches(model, LIMITS, None, has_rounds=False).list_all()
    decode = next(batch for batch in batches if batch.phase == "decode")
    decode.make(decode.size)
    assert decode.described == "4 requests of 447 tokens"
    assert steps == [("decode", 4, {"length": 447})]
    assert [model.find_tracked_length(length) for length in (62, 63, 64, 127)] == [62, 63, 63, 127]


def test_speculation_has_its_scheduler_make_the_chunk_behind_a_prefix_too() -> None:
    model, steps = make_model(ScheduledDeployment)
    batches = LargestBatches(model, LIMITS, None, has_rounds=True).list_all()
    assert list(map(describe_batch, batches)) == [
        ("chunk", "a chunk of 100 tokens", "--chunked-prefill-size", 100),
        ("prefix", "a chunk of 100 tokens behind 900", "--context-length", 1000),
        ("speculation", "a round of 4 requests of 492 tokens", "--max-running-requests", 4),
        ("long speculation", "a round of 1 request of 1,000 tokens", "--context-length", 1000),
    ]
    for batch in batches:
        batch.make(batch.size)
    assert steps == [
        ("extend_scheduled_chunk", 100, {}),
        ("extend_scheduled_behind_prefix", 900, 100, {}),
        ("speculate", 4, {"length": 492}),
        ("speculate", 1, 1000, {}),
    ]


def test_its_prefix_is_of_full_chunks_at_every_size_and_none_at_one_chunk() -> None:
    model, steps = make_model(ScheduledDeployment)
    batches = LargestBatches(model, LIMITS, None, has_rounds=True).list_all()
    [prefix] = [batch for batch in batches if batch.phase == "prefix"]
    for size in (777, 250, 100):
        prefix.make(size)
    assert [sizes[1:3] for sizes in steps] == [(600, 100), (100, 100)]
    short = LargestBatches(model, {**LIMITS, "context": 208}, None, has_rounds=True).list_all()
    assert "a chunk of 100 tokens behind 100" in [batch.described for batch in short]
    none = LargestBatches(model, {**LIMITS, "context": 207}, None, has_rounds=True).list_all()
    assert "prefix" not in [batch.phase for batch in none]


class ChunkScheduler:
    """Cuts a prompt at full chunks, and keeps what it was told of the batches before."""

    def __init__(self, chunk: int) -> None:
        self.chunk = chunk
        self.waiting_queue: list[Any] = []
        self.running_batch = self.last_batch = None
        self.chosen: list[Any] = []
        self.ran: list[Any] = []

    def get_next_batch_to_run(self, running_batch: Any, last_batch: Any) -> Any:
        assert last_batch is (self.chosen[-1] if self.chosen else None)
        mode = SimpleNamespace(name="EXTEND", is_extend=lambda: True)
        batch = SimpleNamespace(forward_mode=mode, extend_num_tokens=self.chunk, reqs=[None])
        self.chosen.append(batch)
        return SimpleNamespace(running_batch=running_batch, batch_to_run=batch)

    def run_batch(self, batch: Any) -> None:
        self.ran.append(batch)


def make_scheduled_model(chunk: int) -> tuple[Any, list[Any]]:
    model: Any = object.__new__(ScheduledDeployment)
    model.scheduler = ChunkScheduler(chunk)
    steps: list[Any] = []
    model._restart = lambda tokens: steps.append(("restart", tokens))
    model._queue = lambda number, length: steps.append(("queue", number, length))
    model.begin_recording = lambda: steps.append(("record", len(model.scheduler.chosen)))
    return model, steps


def test_the_scheduler_cuts_the_whole_prompt_and_its_last_chunk_alone_runs() -> None:
    model, steps = make_scheduled_model(100)
    model.extend_scheduled_behind_prefix(300, 100)
    assert steps == [("restart", 500), ("queue", 0, 400), ("record", 3)]
    assert len(model.scheduler.chosen) == 4
    assert model.scheduler.ran == model.scheduler.chosen[3:]


def test_a_chunk_of_another_length_is_an_error_and_does_not_run() -> None:
    model, _ = make_scheduled_model(64)
    message = "a batch of mode EXTEND with 1 request, not a chunk of 100 tokens behind 300"
    with pytest.raises(RuntimeError, match=message):
        model.extend_scheduled_behind_prefix(300, 100)
    assert model.scheduler.ran == []


@pytest.mark.parametrize(
    ("sizes", "requests", "expected"),
    [
        ([1, 2, 4], 4, [("graph", 3, 4), ("small graph", 1, 1)]),
        ([8, 16], 32, [("graph", 9, 16), ("small graph", 8, 8)]),
        ([8, 16], 8, [("small graph", 8, 8)]),  # a server with eight requests has no ninth
        ([8, 16], 4, []),
        ([4], 4, [("graph", 1, 4)]),
    ],
)
def test_a_batch_is_replayed_in_the_graph_of_the_size_that_it_is_for(
    sizes: list[int], requests: int, expected: list[tuple[str, int, int]]
) -> None:
    captures = make_captures(sizes)
    required = record_required_replays(captures)
    model, steps = make_model(FullSizeModel)
    limits = {**LIMITS, "requests": requests}
    batches = LargestBatches(model, limits, captures, has_rounds=False).list_all()
    replays = [batch for batch in batches if "graph" in batch.phase]
    for batch in replays:
        batch.make(batch.size)
    found = zip(replays, required, strict=True)
    counts = [count for _, count, *_ in steps]
    phases = [(batch.phase, graph) for batch, graph in found]
    assert [(*one, count) for one, count in zip(phases, counts, strict=True)] == [
        (phase, graph, count) for phase, count, graph in expected
    ]
    # Their requests are as long as the pool allows, and the context is what is searched.
    lengths = [min(1000, 2000 // count - 8) for count in counts]
    assert [length for *_, length, _ in steps] == lengths == [replay.size for replay in replays]
    assert {replay.setting for replay in replays} <= {"--context-length"}


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        (
            [4, 8, 64, 96],
            [
                ("prefill graph", "a chunk of 65 tokens in the graph of 96, the largest of 4", 65),
                (SMALL, "a chunk of 4 tokens behind 996, in the smallest of 4", 1000),
            ],
        ),
        ([96], [("prefill graph", "a chunk of 1 tokens in the graph of 96, the largest of 1", 1)]),
        # No chunk has more than 100 tokens.
        (
            [4, 100, 200],
            [(SMALL, "a chunk of 4 tokens behind 996, in the smallest of 3", 1000)],
        ),
    ],
)
def test_a_chunk_is_replayed_in_the_graph_of_the_tokens_that_it_is_for(
    sizes: list[int], expected: list[tuple[str, str, int]]
) -> None:
    captures = PrefillCaptures(SimpleNamespace())  # type: ignore[arg-type]
    captures.buckets = sizes
    required = record_required_replays(captures)
    model, asked = make_model(FullSizeModel)
    batches = LargestBatches(model, LIMITS, None, False, captures).list_all()
    batches = [batch for batch in batches if batch.phase.startswith("prefill")]
    assert [(one.phase, one.described, one.size) for one in batches] == expected
    for batch in batches:
        batch.make(batch.size)
    graph_sizes = {"prefill graph": max(sizes), SMALL: min(sizes)}
    assert required == [graph_sizes[batch.phase] for batch in batches]
    lengths = [sum(size for size in one if isinstance(size, int)) for one in asked]
    assert lengths == [1000 if one.phase == SMALL else one.size for one in batches]


def test_a_decode_beside_a_smaller_pool_has_shorter_requests() -> None:
    model, steps = make_model(FullSizeModel)
    batches = LargestBatches(model, LIMITS, None, has_rounds=False).list_all()
    [decode] = [batch for batch in batches if batch.phase == "decode"]
    decode.make(4)
    with model.use_smaller_pool(1000):
        decode.make(4)
        decode.make(2)
    decode.make(2)
    lengths = [more["length"] for *_, more in steps]
    assert lengths == [492, 242, 492, 492]
