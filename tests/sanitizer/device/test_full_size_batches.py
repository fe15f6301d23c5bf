"""Pools of a full-size deployment: a batch gets the last slots, as when all others are in use."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from fixtures.rehearse import full_size_batches
from fixtures.rehearse.scheduled_batches import ScheduledDeployment
from harness.runs.rehearse.deployment_rehearsal import DeploymentRehearsal


def make_allocator(**values: Any) -> Any:
    """Make an object of a class that counts as SGLang's."""
    kind = type("SlotAllocator", (), {"__module__": "sglang.srt.mem_cache.allocator"})
    allocator = kind()
    vars(allocator).update(values)
    return allocator


def test_the_longest_context_is_that_of_the_model_or_of_its_draft(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module: Any = ModuleType("sglang.srt.configs.model_config")
    module.get_context_length = lambda config: config
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def make_runner(context: int) -> Any:
        return SimpleNamespace(model_config=SimpleNamespace(hf_text_config=context))

    model: Any = object.__new__(ScheduledDeployment)
    model.runner, model.scheduler = make_runner(131072), SimpleNamespace(draft_worker=None)
    assert model.find_longest_context() == 131072
    drafts = SimpleNamespace(draft_runner=make_runner(2048))
    model.scheduler.draft_worker = SimpleNamespace(draft_worker=drafts)
    assert model.find_longest_context() == 2048


def test_of_a_smaller_pool_the_last_slots_are_taken_and_none_behind_them() -> None:
    model: Any = object.__new__(full_size_batches.FullSizeModel)
    table = torch.zeros(1, 8, dtype=torch.int32)
    rows = SimpleNamespace(req_to_token=table)
    model.runner = SimpleNamespace(max_total_num_tokens=100, req_to_token_pool=rows)
    request: Any = SimpleNamespace(req_pool_idx=0)
    with model.use_smaller_pool(40):
        model._write_slots([request], 3)
        assert table[0].tolist() == [37, 38, 39, 0, 0, 0, 0, 0]
        allocator = make_allocator(free_pages=torch.arange(1, 101))
        full_size_batches._keep_last_pages(allocator, 2, model._pool_share)
        assert allocator.free_pages.tolist() == [39, 40]
    model._write_slots([request], 3)
    assert table[0, :3].tolist() == [97, 98, 99]


def test_what_prepares_a_batch_runs_no_layer_and_samples_a_token_for_each_request() -> None:
    def run_layers(*args: Any) -> Any:
        raise AssertionError("a layer ran")

    runner_class = type("Runner", (), {"forward": run_layers, "sample": run_layers})
    model = object.__new__(full_size_batches.FullSizeModel)
    model.runner = runner = runner_class()
    batch = SimpleNamespace(seq_lens=torch.tensor([2, 2, 2]))
    with model._without_layers():
        tokens = runner.sample(runner.forward(batch).logits_output, batch)
    assert (tokens.dtype, len(tokens)) == (torch.int64, 3)
    assert vars(runner) == {}  # the layers are back


def test_a_batch_is_measured_without_what_the_last_one_left() -> None:
    """Else the size at which memory runs out would depend on the sizes that were probed before."""
    backend = SimpleNamespace(forward_metadata=torch.zeros(8))
    rehearsal = object.__new__(DeploymentRehearsal)
    rehearsal.model = SimpleNamespace(runner=SimpleNamespace(attn_backend=backend))  # type: ignore[assignment]
    rehearsal.result = SimpleNamespace(card_memory=1 << 40)  # type: ignore[assignment]
    rehearsal._drop_batch_memory()
    assert backend.forward_metadata is None
