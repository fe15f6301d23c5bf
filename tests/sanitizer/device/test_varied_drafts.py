"""The scores of drafts: they vary by request and step, and a worker without them is an error."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch

from fixtures.rehearse.varied_drafts import VariedDrafts
from harness.core.errors import UnfixError


def fast_topk(values: torch.Tensor, topk: int) -> tuple[torch.Tensor, torch.Tensor]:
    return values.topk(topk)


def make_worker(monkeypatch: pytest.MonkeyPatch, *names: str) -> tuple[object, ModuleType]:
    """Make a worker whose module has functions of these names."""
    module = ModuleType("worker_module")
    for name in names:
        setattr(module, name, fast_topk)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return type("Worker", (), {"__module__": module.__name__})(), module


def test_no_two_requests_and_no_two_steps_have_the_same_scores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker, module = make_worker(monkeypatch, "fast_topk", "select_top_k_tokens")
    drafts = VariedDrafts(worker)
    rounds = []
    for _ in range(2):
        with drafts.score():
            steps = [module.fast_topk(torch.zeros(6, 32), 4)[0] for _ in range(3)]
        rounds.append(torch.cat(steps).tolist())
    assert rounds[0] == rounds[1]  # the same batch once more
    assert len(set(map(tuple, rounds[0]))) == 18
    assert all(row == sorted(row, reverse=True) for row in rounds[0])
    assert module.fast_topk is fast_topk


@pytest.mark.parametrize("missing", ["fast_topk", "select_top_k_tokens"])
def test_a_release_with_other_names_is_an_error(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    names = {"fast_topk", "select_top_k_tokens"} - {missing}
    worker, _ = make_worker(monkeypatch, *names)
    with pytest.raises(UnfixError, match=f"no module of Worker has {missing}"):
        VariedDrafts(worker)
