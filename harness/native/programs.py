"""A kernel's compiled program: made of its graph once, kept on disk, loaded once a process."""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.kernels import Graph
from harness.kernels.kept import kept
from harness.native import accesses
from harness.native.lowering import Lowered, Lowering
from harness.native.machine import Machine, host_words

_CODE = "".join(file.read_text() for file in sorted(Path(__file__).parent.glob("*.py")))
_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)


@dataclass(frozen=True, slots=True)
class Program:
    """What is known of a compiled kernel, and the function that launches it."""

    lowered: Lowered
    launch: Callable[[int], int]


@dataclass(frozen=True, slots=True)
class _Stored:
    lowered: Lowered
    code: bytes


@functools.cache
def _host() -> str:
    return hashlib.sha256("\0".join([*host_words(), _CODE]).encode()).hexdigest()


@functools.cache
def ready() -> Machine:
    """The machine, with the functions that all kernels call. After a fork it is still there."""
    machine = Machine()
    code = kept("accesses", _host(), lambda: machine.compiled(accesses.module()))
    for name, address in zip(
        accesses.names(), machine.loaded(code, *accesses.names()), strict=True
    ):
        machine.known(name, address)
    return machine


def program_of(key: str, graph: Callable[[], Graph]) -> Program:
    """The program of this key; the graph is asked for only where it has to be made."""
    machine = ready()

    def made() -> _Stored:
        lowered = Lowering(graph()).lowered()
        return _Stored(lowered.without_text(), machine.compiled(lowered.text))

    whole = hashlib.sha256((key + _host()).encode()).hexdigest()
    stored = kept("programs", whole, made)
    [address] = machine.loaded(stored.code, "launch")
    return Program(stored.lowered, _LAUNCH(address))
