"""A kernel's compiled program: made of its graph once, kept on disk, loaded once a process.

A process that forks others may load what one of them needed: the next ones have it from the start.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from harness.kernels import Graph
from harness.kernels.kept import is_kept, kept
from harness.native import accesses
from harness.native.lowering import Lowered, Lowering
from harness.native.machine import Machine, host_words

_CODE = "".join(file.read_text() for file in sorted(Path(__file__).parent.glob("*.py")))
_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)


_HOT = 0.25  # seconds of running: what a thorough compilation costs


@dataclass(frozen=True, slots=True)
class _Stored:
    lowered: Lowered
    code: bytes


class Program:
    """What is known of a compiled kernel, and how it is launched.

    Most kernels of a suite run for milliseconds in all, so they are compiled quickly. One that has
    run for long enough to make up for it is compiled again, thoroughly, for every later process.
    """

    def __init__(self, key: str, stored: _Stored, thorough: bool) -> None:
        self.lowered = stored.lowered
        self.thorough = thorough
        self._key = key
        self._ran = 0.0
        self._function = _function(stored.code)

    def launch(self, context: int) -> int:
        start = perf_counter()
        wrong = self._function(context)
        self._ran += perf_counter() - start
        if self._ran > _HOT and not self.thorough:
            self.thorough = True
            self._function = _function(_compiled(self._key, self.lowered, True).code)
        return wrong


def _function(code: bytes) -> Callable[[int], int]:
    return _LAUNCH(ready().loaded(code, "launch")[0])


def _compiled(key: str, lowered: Lowered, thorough: bool) -> _Stored:
    machine = ready()
    return kept(
        _FOLDERS[thorough], key, lambda: _Stored(lowered, machine.compiled(lowered.text, thorough))
    )


_FOLDERS = {False: "programs", True: "thorough"}


@functools.cache
def _host() -> str:
    return hashlib.sha256("\0".join([*host_words(), _CODE]).encode()).hexdigest()


@functools.cache
def ready() -> Machine:
    """The machine, with the functions that all kernels call. After a fork it is still there."""
    machine = Machine()
    code = kept("accesses", _host(), lambda: machine.compiled(accesses.module(), thorough=True))
    addresses = machine.loaded(code, *accesses.names())
    for name, address in zip(accesses.names(), addresses, strict=True):
        machine.known(name, address)
    return machine


_MOST_LOADED = 1000  # programs that a process has ready for its forks
_loaded: dict[str, Program] = {}


def program_of(key: str, graph: Callable[[], Graph], exact: bool) -> Program:
    """The program of this key; the graph is asked for only where it has to be made."""
    key = hashlib.sha256(f"{key} {_host()} {exact}".encode()).hexdigest()

    def made() -> _Stored:
        lowered = Lowering(graph(), exact).lowered()
        return _Stored(lowered, ready().compiled(lowered.text, thorough=False))

    if key not in _loaded:
        thorough = is_kept(_FOLDERS[True], key)
        _loaded[key] = Program(key, kept(_FOLDERS[thorough], key, made), thorough)
    return _loaded[key]


def needed() -> dict[str, bool]:
    """The programs of this process by their keys, and which are thorough."""
    return {key: program.thorough for key, program in _loaded.items()}


def load(keys: dict[str, bool]) -> None:
    """Have ready what a fork of this process needed; what is not on disk stays out."""
    for key, thorough in keys.items():
        known = _loaded.get(key)
        if known is None and len(_loaded) >= _MOST_LOADED:
            continue
        if (known is None or thorough > known.thorough) and is_kept(_FOLDERS[thorough], key):
            _loaded[key] = Program(key, kept(_FOLDERS[thorough], key, _gone), thorough)


def _gone() -> _Stored:
    raise FileNotFoundError("a program that was kept a moment ago")
