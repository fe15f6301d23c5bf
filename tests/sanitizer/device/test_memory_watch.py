"""What a rehearsed batch takes of the card: SGLang's tensors, and not those of our stand-ins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from dry_runs import call_in_dry_run

from harness.runs.rehearse.memory_watch import MemoryWatch
from harness.sanitizer.device import stand_ins
from harness.sanitizer.device.memory import ALLOCATION_OBSERVERS, LEDGER
from harness.store.rehearse.values import RehearsedPhase

ROWS, WIDTH = 1 << 20, 1 << 12
BYTES = 2 * ROWS * WIDTH  # of one tensor of bfloat16, 8.6 GB


def watch_batch(card_memory: int, run: Callable[[MemoryWatch], Any]) -> Any:
    """Return what a batch gives in a dry run, of which nothing of other tests counts."""

    def call() -> Any:
        before = LEDGER.measure(0)  # what other tests of this process keep
        watch = MemoryWatch(RehearsedPhase("chunk", ""), before + card_memory)
        ALLOCATION_OBSERVERS.append(watch.observe)
        result = run(watch)
        return [watch.peak - before, [finding.headline for finding in watch.findings], result]

    return call_in_dry_run(call)


def watch_experts(sums: bool, card_memory: int) -> tuple[int, list[str]]:
    """Return the peak, and the findings, of a batch that sums two experts of each token."""

    def sum_experts(_: MemoryWatch) -> None:
        values = torch.empty(ROWS, 2, WIDTH, dtype=torch.bfloat16, device="cuda")
        out = torch.empty(ROWS, WIDTH, dtype=torch.bfloat16, device="cuda")
        if sums:
            stand_ins.call_stand_in("sgl_kernel.moe_sum_reduce", (values, out, 1.0), {})
        else:
            _ = values.float()
        del values
        torch.empty(WIDTH, WIDTH, device="cuda")

    peak, findings, _ = watch_batch(card_memory, sum_experts)
    return peak, findings


def test_what_a_stand_in_computes_with_is_no_memory_of_the_card() -> None:
    """The kernel adds in registers; its stand-in makes a copy in float32, of 34.4 GB."""
    assert watch_experts(True, 4 * BYTES) == (3 * BYTES, [])


def test_what_sglang_computes_with_is_memory_of_the_card() -> None:
    peak, [finding] = watch_experts(False, 4 * BYTES)
    assert peak == 7 * BYTES
    assert finding.startswith("a tensor of 34.4 GB does not fit: 60.1 GB of 34.4 GB would be")


def test_what_a_stand_in_returns_is_counted_with_the_next_tensor() -> None:
    def normalize(watch: MemoryWatch) -> Any:
        values = torch.empty(ROWS, WIDTH, dtype=torch.bfloat16, device="cuda")
        weight = torch.empty(WIDTH, dtype=torch.bfloat16, device="cuda")
        first = watch.peak
        normed = stand_ins.call_stand_in("sgl_kernel.rmsnorm", (values, weight), {})
        within = [watch.peak - first, len(watch.findings)]
        following = torch.empty(WIDTH, WIDTH, device="cuda")
        return [within, len(normed), len(following)]

    peak, findings, [within, *_] = watch_batch(BYTES, normalize)
    assert within == [0, 0]
    assert (peak // BYTES, len(findings)) == (2, 1)
