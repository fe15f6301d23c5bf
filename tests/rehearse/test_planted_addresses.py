"""A deployment with a planted fault of addresses: the rehearsal names the batch and the line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from rehearsed_models import IS_READY, REASON, rehearse_layers

FOLDER = Path(__file__).parent / "planted_toggles"
# Graphs of decode and of prefill: the argument that asks for them, the planted fault, the batches
# that replay them, and what reads memory that was freed behind the capture.
STALE = [
    (
        *("--cuda-graph-max-bs-decode", "captured-copy-of-indices", {"graph", "small graph"}),
        r"decode_attention._fwd_grouped_kernel_stage1 (captured at ",
    ),
    (
        *("--cuda-graph-max-bs-prefill", "captured-copy-of-tokens"),
        *({"prefill graph", "prefill small graph"}, "aten::index_select (captured at "),
    ),
]
COPY = "tl.store(kv_indices_ptr + kv_indices_offset + offset, data"

pytestmark = [
    pytest.mark.skipif(not IS_READY, reason=REASON),
    pytest.mark.skipif("UNFIX_NIGHTLY" not in os.environ, reason="a nightly test"),
]


def rehearse_planted(home: Path, toggle: str, *arguments: str) -> dict[str, Any]:
    """Rehearse all of Llama-3.1-8B, with a planted fault if one is named."""
    words = ["--toggles", str(FOLDER), "--revert", toggle] if toggle else []
    return rehearse_layers(home, "llama-3.1-8b", None, [*words, "--no-thresholds"], arguments)


def list_failures(deployment: dict[str, Any]) -> dict[str, str]:
    return {phase["name"]: phase["failure"] for phase in deployment["phases"] if phase["failure"]}


@pytest.mark.parametrize(("argument", "toggle", "batches", "reader"), STALE)
def test_memory_freed_behind_a_capture_is_named_with_sglang_s_line(
    home: Path, argument: str, toggle: str, batches: set[str], reader: str
) -> None:
    failures = list_failures(rehearse_planted(home, toggle, argument, "64"))
    assert failures.keys() == batches
    for failure in failures.values():
        assert failure.startswith("StaleGraphMemory: the graph's ")
        _, found, line = failure.partition(reader)
        assert found
        assert "/sglang/" in line.partition(") uses a tensor")[0]


@pytest.mark.parametrize("argument", [argument for argument, *_ in STALE])
def test_graphs_without_a_fault_are_replayed(home: Path, argument: str) -> None:
    assert list_failures(rehearse_planted(home, "", argument, "64")) == {}


def test_a_copy_past_the_end_is_named_in_each_batch_that_copies(home: Path) -> None:
    findings = rehearse_planted(home, "copy-past-the-end")["findings"]
    overruns = [finding for finding in findings if finding["kind"] == "OutOfBounds"]
    assert {overrun["phase"] for overrun in overruns} == {"prefix", "decode", "long decode"}
    assert all(overrun["text"].startswith(COPY) for overrun in overruns)
    assert all(overrun["rank"] == "reachable" for overrun in overruns)
