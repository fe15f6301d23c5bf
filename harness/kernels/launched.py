"""Launches as they were made: which types and constants a kernel was given, kept in a file.

With `UNFIX_LAUNCHES=FILE` in front of any command each mode in which a kernel is launched is
written there once, by all processes together: of suites, of servers under check, of scripts. Two
launches are of one mode if they differ in numbers alone. Whoever reads kernels without running them
has these beside what the host's code and names say.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import UnfixError

WRITES = "UNFIX_LAUNCHES"
CONSTANT = "constexpr"
_DTYPE = "dtype"
_seen: set[Any] = set()


@dataclass(frozen=True, slots=True)
class Launched:
    """One way to launch a kernel."""

    kernel: str  # module:name
    kinds: dict[str, str]  # by parameter, as Triton writes them
    constants: dict[str, Any]  # as JSON has them, see `meant`

    @property
    def mode(self) -> str:
        """Which kernel it is and how it is compiled, less the numbers that it is compiled for."""
        words = {
            name: "a number" if type(value) in (int, float) else value
            for name, value in self.constants.items()
        }
        return json.dumps([self.kernel, self.kinds, words], sort_keys=True)


def is_wanted() -> bool:
    return bool(os.environ.get(WRITES))


def note(kernel: Any, bound: Any) -> None:
    """Write a call down, if somebody wants to have them and it can be said in words."""
    file = os.environ.get(WRITES)
    if not file:
        return
    name = f"{kernel.fn.__module__}:{kernel.fn.__qualname__}"
    if (name, bound.key) in _seen:
        return
    _seen.add((name, bound.key))
    kinds, constants = {}, {}
    for parameter, value, kind in zip(
        kernel.params, bound.values.values(), bound.kinds, strict=True
    ):
        if kind == CONSTANT and type(value) is int and not parameter.is_constexpr:
            kind = "i32"  # a 1, which Triton compiles for
        kinds[parameter.name] = kind
        if kind == CONSTANT:
            constants[parameter.name] = said(value)
    if not all(isinstance(kind, str) for kind in kinds.values()):
        return  # tuples, descriptors
    one = Launched(name, kinds, constants)
    try:
        mode = one.mode
    except TypeError:
        return  # a function that is a constant
    if mode in _seen:
        return
    _seen.add(mode)
    with open(file, "a+") as kept:
        fcntl.flock(kept, fcntl.LOCK_EX)
        kept.seek(0)
        if mode not in {known.mode for known in _launches(kept, Path(file))}:
            words = {"kernel": one.kernel, "kinds": kinds, "constants": constants}
            kept.write(json.dumps(words) + "\n")
            kept.flush()


def read(file: Path) -> dict[str, list[Launched]]:
    """By kernel; each mode once."""
    found: dict[str, dict[str, Launched]] = defaultdict(dict)
    try:
        with file.open() as lines:
            for one in _launches(lines, file):
                found[one.kernel].setdefault(one.mode, one)
    except OSError as error:
        raise UnfixError(f"there is no file of launches {file}: {error.strerror}") from error
    return {kernel: list(modes.values()) for kernel, modes in found.items()}


def _launches(lines: Iterable[str], file: Path) -> list[Launched]:
    try:
        told = [json.loads(line) for line in lines]
        return [Launched(one["kernel"], dict(one["kinds"]), dict(one["constants"])) for one in told]
    except (ValueError, KeyError, TypeError) as error:
        raise UnfixError(f"{file} holds no launches: {WRITES}={file} makes it") from error


def said(value: Any) -> Any:
    """A constant as JSON has it; what has no words stays what it is."""
    import triton.language as tl

    return {_DTYPE: str(value)} if isinstance(value, tl.dtype) else value


def meant(value: Any) -> Any:
    """The constant, of what JSON has of it."""
    import triton.language as tl

    if isinstance(value, dict):
        return tl.dtype(value[_DTYPE])
    return tuple(map(meant, value)) if isinstance(value, list) else value
