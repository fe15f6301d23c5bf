"""A finding run: its launch under check on this CPU, one below the threshold and at it.

Tensors are virtual: as large as the launch needs, their memory only what is touched. Tensors of
numbers hold what the limits file says at that load, in one of a few patterns. Only the program at
the far corner of the grid runs.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import mmap
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from harness import checking
from harness.audit.arguments import Parameter
from harness.audit.examining import Case, cone_of
from harness.audit.findings import CONFIRMED, Finding
from harness.checking import CannotFollow, Violation, Wrapped

_BYTES = 1 << 36  # a tensor's room: more than any address that is still right
_TILE = 1 << 26
_HELD = 1 << 35  # of tensors of numbers
_SECONDS = 10  # of the processor, for one kernel
_TYPES = {
    "i1": torch.bool, "i8": torch.int8, "u8": torch.uint8, "i16": torch.int16,
    "i32": torch.int32, "i64": torch.int64, "u32": torch.uint32, "u64": torch.uint64,
    "fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64,
    "fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2,
}  # fmt: skip
# What tensors of numbers hold: of the number of an element and the largest one.
_PATTERNS: dict[str, Callable[[int, int], int]] = {
    "the largest": lambda place, most: most,
    "nothing and the largest, in turn": lambda place, most: most * (place % 2),
    "the largest and nothing, in turn": lambda place, most: most * (1 - place % 2),
    "zeros": lambda place, most: 0,
    "ones": lambda place, most: min(1, most),
}
Found = tuple[Finding, dict[str, int]]


def confirmed(kernel: Any, case: Case, found: list[Found]) -> list[Finding]:
    """The findings with what running them showed; in a fork, which may end any way it likes."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        torch.set_num_threads(1)
        signal.setitimer(signal.ITIMER_PROF, _SECONDS)
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 2)
        for finding, at in found:
            os.write(write, (_words(kernel, case, finding, at).replace("\n", " ") + "\n").encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answers:
        said = answers.read().splitlines()
    _, status = os.waitpid(child, 0)
    ended = "too slow to run" if os.WTERMSIG(status) == signal.SIGPROF else "it ends the process"
    said += [f"not run: {ended}"] * (len(found) - len(said))
    return [replace(one[0], confirmed=words) for one, words in zip(found, said, strict=True)]


def _words(kernel: Any, case: Case, finding: Finding, at: Mapping[str, int]) -> str:
    last = "no launch that is tried comes to this line"
    for pattern, corner in itertools.product(_PATTERNS, ((1, 1, 1), (1, 0, 0))):
        launch = Launching(kernel, case, finding, pattern, corner)
        above = launch.outcome(at)
        if above == "wraps":
            below = launch.outcome({**at, finding.quantity: finding.threshold - 1})
            if below == "passes":
                return CONFIRMED
            last = f"one below: {below}"
        elif above.startswith("cannot"):
            return f"not run: {above}"
        elif above not in ("passes", "elsewhere"):
            last = above
    return f"not run: {last}"


class Launching:
    """One kernel's launches at different loads."""

    def __init__(
        self, kernel: Any, case: Case, finding: Finding, pattern: str, corner: tuple[int, ...]
    ) -> None:
        self._kernel, self._case, self._finding = kernel, case, finding
        self._pattern, self._corner = _PATTERNS[pattern], corner
        self._near = cone_of(case, finding.file, finding.line)

    def outcome(self, at: Mapping[str, int]) -> str:
        world = self._case.world(at, False)
        sides = [side.high + 1 for side in world.programs]
        program = tuple((side - 1) * on for side, on in zip(sides, self._corner, strict=True))
        try:
            with checking.checked("cpu", exact=True) as check:
                check.only(self._kernel.fn.__name__, [program])
                self._kernel[tuple(sides)](**dict(self._arguments(at)))
        except Wrapped as error:
            place = error.place
            same = place is not None and place.line == self._finding.line
            return "wraps" if same else "elsewhere"
        except Violation as error:
            return error.headline
        except CannotFollow as error:
            return f"cannot follow it: {error}"
        except Exception as error:
            return f"cannot launch it: {type(error).__name__}: {error}"
        return "passes"

    def _arguments(self, at: Mapping[str, int]) -> Iterator[tuple[str, Any]]:
        for one in self._case.given:
            yield one.name, self._argument(one, at)

    def _argument(self, one: Parameter, at: Mapping[str, int]) -> Any:
        if one.kind == "constexpr":
            return one.value
        if one.is_pointer:
            kind = _TYPES[one.kind[1:]]
            held = self._case.held(one, at)
            if held is None or kind.is_floating_point:
                return _empty(one.name, kind)
            return _repeated(one.name, *(self._pattern(place, held) for place in range(2)), kind)
        if one.kind == "i1":
            return True
        if one.kind[0] == "i":
            value = self._case.number(one, at)
            # Other lines of the kernel may wrap as well, and would be seen first.
            apart = "stride" in one.name.lower() or "stride" in str(one.expression)
            return 1 if apart and one.name not in self._near else value
        return 1.0


@functools.lru_cache(maxsize=64)
def _empty(name: str, kind: torch.dtype) -> torch.Tensor:
    return checking.virtual((_BYTES // kind.itemsize,), kind)


@functools.lru_cache(maxsize=64)
def _repeated(name: str, even: int, odd: int, kind: torch.dtype) -> torch.Tensor:
    """Two numbers in turn, over a room that is as large as any: one piece of memory, many times."""
    low, high = (torch.iinfo(kind).min, torch.iinfo(kind).max) if kind != torch.bool else (0, 1)
    tile = torch.tensor([min(max(low, one), high) for one in (even, odd)], dtype=kind)
    room = checking.virtual((_HELD // kind.itemsize,), kind)
    file = os.memfd_create("unfix")
    os.write(file, tile.repeat(_TILE // tile.nbytes).view(torch.uint8).numpy().tobytes())
    map_ = ctypes.CDLL(None, use_errno=True).mmap
    map_.restype = ctypes.c_void_p
    map_.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    flags = mmap.MAP_PRIVATE | 0x10  # at this very address
    for start in range(0, _HELD, _TILE):
        map_(room.data_ptr() + start, _TILE, mmap.PROT_READ | mmap.PROT_WRITE, flags, file, 0)
    os.close(file)
    return room
