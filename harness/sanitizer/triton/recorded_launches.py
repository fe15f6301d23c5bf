"""A record of launches: the types and constants with which each kernel was launched.

With `UNFIX_LAUNCHES=FILE` in front of any command, its processes (suites, servers under check,
scripts) write each launch mode of each kernel to the file once. Two launches have one mode if they
differ in numbers alone: BLOCK=16 and BLOCK=32 are one mode, MASKED=True and MASKED=False are two.
The audit, which runs no kernels, reads the modes as the types that occur. Further lines of the file
say who launched each kernel (`recorded_reach`).
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from harness.sanitizer.triton import recorded_reach
from harness.sanitizer.triton.recorded_reach import RECORD_VARIABLE, KernelReach

CONSTEXPR = "constexpr"
_DTYPE_KEY = "dtype"
_recorded: set[Any] = set()


class TensorSize(NamedTuple):
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int


@dataclass(frozen=True, slots=True)
class LaunchMode:
    """One way to launch a kernel."""

    kernel: str  # module:name
    types: dict[str, str]  # by parameter, as Triton writes them
    constants: dict[str, Any]  # see `constant_to_json`
    # Of the first launch of the mode, if it ran under check on a CPU:
    grid: tuple[int, ...] = ()
    sizes: dict[str, int | TensorSize] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The mode in words: the kernel, its types, and its constants that are no numbers."""
        words = {
            name: "a number" if type(value) in (int, float) else value
            for name, value in self.constants.items()
        }
        return json.dumps([self.kernel, self.types, words], sort_keys=True)


def record_launch(kernel: Any, bound: Any, grid: tuple[int, ...] = ()) -> None:
    """Append a call's mode to the file, if there is one and JSON can express the call."""
    file = os.environ.get(RECORD_VARIABLE)
    if not file:
        return
    name = recorded_reach.name_kernel(kernel)
    if (name, bound.key) in _recorded:
        return
    _recorded.add((name, bound.key))
    kinds, constants = {}, {}
    for parameter, value, kind in zip(
        kernel.params, bound.values.values(), bound.types, strict=True
    ):
        if kind == CONSTEXPR and type(value) is int and not parameter.is_constexpr:
            kind = "i32"  # a 1, which Triton compiles in
        kinds[parameter.name] = kind
        if kind == CONSTEXPR:
            constants[parameter.name] = constant_to_json(value)
    if not all(isinstance(kind, str) for kind in kinds.values()):
        return  # tuples, descriptors
    launch_mode = LaunchMode(name, kinds, constants, grid, _measure_sizes(bound.values))
    try:
        mode_key = launch_mode.key
    except TypeError:
        return  # a function that is a constant
    if mode_key in _recorded:
        return
    _recorded.add(mode_key)
    with open(file, "a+") as records:
        fcntl.flock(records, fcntl.LOCK_EX)
        records.seek(0)
        with recorded_reach.explain_unreadable_record(Path(file)):
            is_known = mode_key in {mode.key for mode in _parse_launch_modes(records)}
        if not is_known:
            records.write(_render_mode(launch_mode) + "\n")
            records.flush()


def _measure_sizes(values: dict[str, Any]) -> dict[str, int | TensorSize]:
    sizes: dict[str, int | TensorSize] = {}
    for name, value in values.items():
        tensor = getattr(value, "base", value)  # under a reinterpreted one
        if type(value) is int:
            sizes[name] = value
        elif callable(getattr(tensor, "stride", None)):
            sizes[name] = TensorSize((*tensor.shape,), (*tensor.stride(),), tensor.element_size())
    return sizes


def read_launch_modes(file: Path) -> dict[str, list[LaunchMode]]:
    """Read the modes of a file by kernel, each once."""
    modes_by_kernel: dict[str, dict[str, LaunchMode]] = defaultdict(dict)
    with recorded_reach.explain_unreadable_record(file), file.open() as lines:
        for mode in _parse_launch_modes(lines):
            modes_by_kernel[mode.kernel].setdefault(mode.key, mode)
    return {kernel: list(modes.values()) for kernel, modes in modes_by_kernel.items()}


def merge_records(files: Iterable[Path], package: str) -> str:
    """Merge files into the text of one: the modes and the reach of one package's kernels.

    Triton's are named by a module, `toy.a:k`, and those of CUDA by a file, `toy/a.cuh:k`.
    """
    prefixes = (f"{package}.", f"{package}/")
    modes: dict[str, LaunchMode] = {}
    reached: dict[tuple[str, str], KernelReach] = {}
    for file in files:
        for kernel_modes in read_launch_modes(file).values():
            for mode in kernel_modes:
                modes.setdefault(mode.key, mode)
        for reach in recorded_reach.read_reach(file):
            reached.setdefault((reach.kernel, reach.release), reach).add(reach)
    lines = [_render_mode(mode) for mode in modes.values() if mode.kernel.startswith(prefixes)]
    lines += [
        recorded_reach.render_reach(reached[key])
        for key in sorted(reached)
        if key[0].startswith(prefixes)
    ]
    return "".join(f"{line}\n" for line in lines)


def _render_mode(mode: LaunchMode) -> str:
    own: dict[str, Any] = {"kernel": mode.kernel, "kinds": mode.types, "constants": mode.constants}
    return json.dumps(own | ({"grid": mode.grid, "sizes": mode.sizes} if mode.grid else {}))


def _parse_launch_modes(lines: Iterable[str]) -> list[LaunchMode]:
    return [
        LaunchMode(
            record["kernel"],
            dict(record["kinds"]),
            dict(record["constants"]),
            tuple(record.get("grid", ())),
            {name: _read_size(size) for name, size in record.get("sizes", {}).items()},
        )
        for record in recorded_reach.parse_records(lines, of_reach=False)
    ]


def _read_size(size: Any) -> int | TensorSize:
    if isinstance(size, int):
        return size
    shape, strides, itemsize = size
    return TensorSize(tuple(shape), tuple(strides), itemsize)


def constant_to_json(value: Any) -> Any:
    """Convert a constant to JSON; one that JSON cannot express stays as it is."""
    import triton.language as tl

    return {_DTYPE_KEY: str(value)} if isinstance(value, tl.dtype) else value


def constant_from_json(value: Any) -> Any:
    """Invert `constant_to_json`."""
    import triton.language as tl

    if isinstance(value, dict):
        return tl.dtype(value[_DTYPE_KEY])
    return tuple(map(constant_from_json, value)) if isinstance(value, list) else value
