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

from harness.core.errors import UnfixError

RECORD_VARIABLE = "UNFIX_LAUNCHES"
CONSTEXPR = "constexpr"
_DTYPE_KEY = "dtype"
_recorded: set[Any] = set()


@dataclass(frozen=True, slots=True)
class LaunchMode:
    """One way to launch a kernel."""

    kernel: str  # module:name
    types: dict[str, str]  # by parameter, as Triton writes them
    constants: dict[str, Any]  # as JSON has them, see `meant`

    @property
    def key(self) -> str:
        """Which kernel it is and how it is compiled, less the numbers that it is compiled for."""
        words = {
            name: "a number" if type(value) in (int, float) else value
            for name, value in self.constants.items()
        }
        return json.dumps([self.kernel, self.types, words], sort_keys=True)


def is_recording() -> bool:
    return bool(os.environ.get(RECORD_VARIABLE))


def record_launch(kernel: Any, bound: Any) -> None:
    """Write a call down, if somebody wants to have them and it can be said in words."""
    file = os.environ.get(RECORD_VARIABLE)
    if not file:
        return
    name = f"{kernel.fn.__module__}:{kernel.fn.__qualname__}"
    if (name, bound.key) in _recorded:
        return
    _recorded.add((name, bound.key))
    kinds, constants = {}, {}
    for parameter, value, kind in zip(
        kernel.params, bound.values.values(), bound.types, strict=True
    ):
        if kind == CONSTEXPR and type(value) is int and not parameter.is_constexpr:
            kind = "i32"  # a 1, which Triton compiles for
        kinds[parameter.name] = kind
        if kind == CONSTEXPR:
            constants[parameter.name] = constant_to_json(value)
    if not all(isinstance(kind, str) for kind in kinds.values()):
        return  # tuples, descriptors
    one = LaunchMode(name, kinds, constants)
    try:
        mode = one.key
    except TypeError:
        return  # a function that is a constant
    if mode in _recorded:
        return
    _recorded.add(mode)
    with open(file, "a+") as kept:
        fcntl.flock(kept, fcntl.LOCK_EX)
        kept.seek(0)
        if mode not in {known.key for known in _parse_launch_modes(kept, Path(file))}:
            words = {"kernel": one.kernel, "kinds": kinds, "constants": constants}
            kept.write(json.dumps(words) + "\n")
            kept.flush()


def read_launch_modes(file: Path) -> dict[str, list[LaunchMode]]:
    """By kernel; each mode once."""
    found: dict[str, dict[str, LaunchMode]] = defaultdict(dict)
    try:
        with file.open() as lines:
            for one in _parse_launch_modes(lines, file):
                found[one.kernel].setdefault(one.key, one)
    except OSError as error:
        raise UnfixError(f"there is no file of launches {file}: {error.strerror}") from error
    return {kernel: list(modes.values()) for kernel, modes in found.items()}


def _parse_launch_modes(lines: Iterable[str], file: Path) -> list[LaunchMode]:
    try:
        told = [json.loads(line) for line in lines]
        return [
            LaunchMode(one["kernel"], dict(one["kinds"]), dict(one["constants"])) for one in told
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise UnfixError(f"{file} holds no launches: {RECORD_VARIABLE}={file} makes it") from error


def constant_to_json(value: Any) -> Any:
    """A constant as JSON has it; what has no words stays what it is."""
    import triton.language as tl

    return {_DTYPE_KEY: str(value)} if isinstance(value, tl.dtype) else value


def constant_from_json(value: Any) -> Any:
    """The constant, of what JSON has of it."""
    import triton.language as tl

    if isinstance(value, dict):
        return tl.dtype(value[_DTYPE_KEY])
    return tuple(map(constant_from_json, value)) if isinstance(value, list) else value
