"""Programs for the tests of launch checks, and both sources of events that they run under."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from traced_card import trace_card

from harness import checking


@triton.jit
def add_one(source, target, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    index = tl.arange(0, BLOCK)
    inside = index < count
    tl.store(target + index, tl.load(source + index, mask=inside) + 1, mask=inside)


@triton.jit
def add_one_through(table, target, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    source = tl.load(table).to(tl.pointer_type(tl.float32))
    index = tl.arange(0, BLOCK)
    tl.store(target + index, tl.load(source + index) + 1)


@triton.jit
def scatter(values, slots, target, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    index = tl.arange(0, BLOCK)
    tl.store(target + tl.load(slots + index), tl.load(values + index))


class CapturedModel:
    """A model whose forward is captured: it reads a buffer and a number of its own."""

    def __init__(self) -> None:
        self.buffer = torch.ones(8, device="cuda")
        self.out = torch.zeros(8, device="cuda")
        self.count = 8

    def capture(self, forward: Callable[[], Any]) -> None:
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            forward()
        self.graph.replay()

    def run_kernel(self) -> None:
        launch_copy(self.buffer, self.out, self.count)

    def run_operator(self) -> None:
        self.out.copy_(self.buffer * self.count)


def launch_copy(source: torch.Tensor, target: torch.Tensor, elements: int) -> None:
    count = elements
    add_one[(1,)](source, target, count, BLOCK=8)


SOURCES: list[str] = []  # the source of events of the running test: virtual, or card


def find_violation(program: Callable[[], Any], *checks: str) -> checking.Violation | None:
    checks = checks or ("graphs", "streams")
    try:
        if SOURCES[-1] == "virtual":
            with checking.checked("virtual", launch_checks=checks):
                program()
        else:
            with checking.checked("virtual") as check, trace_card(checks, raise_violation):
                check.launches.keeps_tensors = False
                program()
    except checking.Violation as violation:
        return violation
    return None


def raise_violation(violation: checking.Violation) -> None:
    raise violation


def make_allocations() -> None:
    torch.ones(3, device="cuda")


@contextlib.contextmanager
def on_side_stream() -> Any:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        yield side
