"""The planted faults: each kernel in Triton here and in CUDA in planted.cu, under one name.

Launched with 2 programs of 32 lanes, or 2 blocks of 32 threads, on the memory of `make_memory`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import triton
import triton.language as tl

from harness.sanitizer.violations.kinds import FORBIDDEN, RACES, ViolationKind

LANES, SIZE = 32, 96


@triton.jit
def read_row(out, values, index):
    at = tl.program_id(0) * 32 + tl.arange(0, 32)
    place = tl.load(index + at)
    tl.store(out + at, tl.load(values + place))  # FAULT


@triton.jit
def write_row(out, values, index):
    at = tl.program_id(0) * 32 + tl.arange(0, 32)
    place = tl.load(index + at)
    tl.store(out + place, tl.load(values + at))  # FAULT


@triton.jit
def update_row(out, values, index):
    at = tl.program_id(0) * 32 + tl.arange(0, 32)
    place = tl.load(index + at)
    tl.atomic_add(out + place, tl.load(values + at))  # FAULT


@triton.jit
def at_product(out, row, stride):
    tl.store(out + row * stride, 1.0)  # FAULT


@triton.jit
def write_one(out, step):
    tl.store(out + 3, (step * tl.program_id(0) + 1).to(tl.float32))  # FAULT


@triton.jit
def write_then_read(out, shared):
    if tl.program_id(0) == 0:
        tl.store(shared + 2, 7.0)
    else:
        tl.store(out + tl.program_id(0), tl.load(shared + 2))  # FAULT


@triton.jit
def read_then_write(out, shared):
    if tl.program_id(0) == 0:
        tl.store(out + tl.program_id(0), tl.load(shared + 2))
    else:
        tl.store(shared + 2, 7.0)  # FAULT


@triton.jit
def store_and_update(out):
    if tl.program_id(0) == 0:
        tl.store(out + 1, 5.0)
    else:
        tl.atomic_add(out + 1, 1.0)  # FAULT


@triton.jit
def asserting(out, count):
    tl.device_assert(count < 3, "three is too many")  # FAULT
    tl.store(out, count.to(tl.float32))


@triton.jit
def update_and_store(out):
    if tl.program_id(0) == 0:
        tl.atomic_add(out + 1, 1.0)
    else:
        tl.store(out + 1, 5.0)  # FAULT


def make_memory(device: str = "cpu") -> dict[str, torch.Tensor]:
    numbers = torch.arange(SIZE, device=device)
    zeros, values = torch.zeros(SIZE, device=device), numbers.float() + 1
    return {"out": zeros, "values": values, "index": numbers, "shared": torch.zeros_like(zeros)}


@dataclass(frozen=True)
class FaultLaunch:
    """A launch with a fault, its report, and the launch beside it that is right."""

    kernel: Any
    kind: ViolationKind
    headline: str  # a pattern; {unit} is "program" or "block", {other} the first one of a race
    program: tuple[int, int, int] | None  # that is reported; None: any of them has the fault
    arguments: tuple[Any, ...]  # names of memory, and numbers
    right: tuple[Any, ...] = ()  # the arguments of the right launch, if they are others
    right_blocks: int = 2
    index: dict[int, int] = field(default_factory=dict)  # what is written into `index`
    empty: str = ""  # the memory whose elements 6 and 7 nothing has written
    rule: str = ""  # the memory of which a program may only access its own 32 elements

    @property
    def name(self) -> str:
        return str(self.kernel.fn.__name__)


_FIRST, _SECOND = (0, 0, 0), (1, 0, 0)
_ROW = ("out", "values", "index")
FAULTS = {
    "a read past the end": FaultLaunch(
        read_row,
        ViolationKind.OUT_OF_BOUNDS,
        r"read_row read 4 bytes past the end of values \(its index 96, and it is float32 \[96\]\)",
        _SECOND,
        _ROW,
        index={40: 96},
    ),
    "a write past the end": FaultLaunch(
        write_row,
        ViolationKind.OUT_OF_BOUNDS,
        r"write_row wrote 8 bytes past the end of out \(its index 97, and it is float32 \[96\]\)",
        _SECOND,
        _ROW,
        index={40: 97},
    ),
    "an update past the end": FaultLaunch(
        update_row,
        ViolationKind.OUT_OF_BOUNDS,
        r"update_row updated 4 bytes past the end of out \(its index 96, .*\)",
        _FIRST,
        _ROW,
        index={9: 96},
    ),
    "a read before the start": FaultLaunch(
        read_row,
        ViolationKind.OUT_OF_BOUNDS,
        r"read_row read 8 bytes before the start of values \(its index -2, .*\)",
        _SECOND,
        _ROW,
        index={41: -2},
    ),
    "an integer overflow": FaultLaunch(
        at_product,
        ViolationKind.OVERFLOW,
        "at_product: an integer overflows on its way into an address",
        None,
        ("out", 1 << 16, 1 << 16),
        right=("out", 6, 7),
    ),
    "a write that a rule excludes": FaultLaunch(
        write_row,
        FORBIDDEN["write"],
        r"write_row wrote out\[70\], outside of what {unit} \(1, 0, 0\) may write",
        _SECOND,
        _ROW,
        index={40: 70},
        rule="out",
    ),
    "a read that a rule excludes": FaultLaunch(
        read_row,
        FORBIDDEN["read"],
        r"read_row read values\[70\], outside of what {unit} \(1, 0, 0\) may read",
        _SECOND,
        _ROW,
        index={40: 70},
        rule="values",
    ),
    "an uninitialized read": FaultLaunch(
        read_row,
        ViolationKind.UNINITIALIZED_READ,
        "read_row read uninitialized memory: values, index [67]",
        _FIRST,
        _ROW,
        empty="values",
    ),
    "two writes of different values": FaultLaunch(
        write_one,
        RACES["write", "write"],
        r"write_one: {other} and {unit} \(1, 0, 0\) write different values to out, index 3, "
        "without an order",
        _SECOND,
        ("out", 1),
        right=("out", 0),
    ),
    "a read of what another writes": FaultLaunch(
        write_then_read,
        RACES["write", "read"],
        r"write_then_read: {other} writes and {unit} \(1, 0, 0\) reads shared, index 2, "
        "without an order",
        _SECOND,
        ("out", "shared"),
        right_blocks=1,
    ),
    "a write of what another reads": FaultLaunch(
        read_then_write,
        RACES["read", "write"],
        r"read_then_write: {other} reads and {unit} \(1, 0, 0\) writes shared, index 2, "
        "without an order",
        _SECOND,
        ("out", "shared"),
        right_blocks=1,
    ),
    "a store beside an atomic": FaultLaunch(
        store_and_update,
        RACES["write", "update"],
        r"store_and_update: {other} and {unit} \(1, 0, 0\) store and update atomically out, "
        "index 1, without an order",
        _SECOND,
        ("out",),
        right_blocks=1,
    ),
    "an atomic beside a store": FaultLaunch(
        update_and_store,
        RACES["update", "write"],
        r"update_and_store: {other} and {unit} \(1, 0, 0\) store and update atomically out, "
        "index 1, without an order",
        _SECOND,
        ("out",),
        right_blocks=1,
    ),
    "an assertion": FaultLaunch(
        asserting,
        ViolationKind.ASSERTION,
        "asserting: its own assertion fails: (three is too many|count < 3)",
        None,
        ("out", 3),
        right=("out", 2),
        right_blocks=1,
    ),
}
