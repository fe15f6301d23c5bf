"""The registry of stand-ins: which function computes what a CUDA binary's operator would.

Names are of the form `flashinfer.norm.rmsnorm` for packages, and `jit:rmsnorm.rmsnorm` for modules
that a program builds: the marker given to its `load_jit`, and the export.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.sanitizer.device import dispatch, graphs
from harness.sanitizer.device.callers import find_caller
from harness.sanitizer.device.record import RECORD
from harness.sanitizer.device.refusals import UnansweredName


@dataclass(frozen=True, slots=True)
class StandIn:
    """A function in place of operators, with what it was written from."""

    function: Callable[..., Any]
    names: tuple[str, ...]
    source: str  # the specification: a file of the package, a paper
    takes_build: bool  # it wants the JIT module's template arguments

    def call(self, name: str, build: JitBuild | None, args: Any, options: Any) -> Any:
        run = functools.partial(self.function, build=build) if self.takes_build else self.function
        return _run_counted(name, run, args, options, build)


@dataclass(frozen=True, slots=True)
class JitBuild:
    """What a program asked its `load_jit` to build."""

    marker: tuple[str, ...]  # the module's name and template arguments
    kernel: str  # the C++ expression of the export, with its template arguments
    export: str = ""  # what Python calls
    load_own: Callable[[], Any] | None = field(default=None, compare=False)  # builds the module


# Called for each operator before its stand-in runs, in each replay of a graph also: its name, the
# build of a JIT module's own, the arguments and the options.
CALL_OBSERVERS: list[Callable[[str, JitBuild | None, Any, Any], None]] = []


STAND_INS: dict[str, StandIn] = {}
_shapes: dict[str, Callable[..., Any]] = {}


def stand_in(*names: str, source: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function under these names."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        takes_build = "build" in inspect.signature(function).parameters
        entry = StandIn(function, names, source, takes_build)
        for name in names:
            if name in STAND_INS:
                raise ValueError(f"two stand-ins for {name}")
            STAND_INS[name] = entry
        return function

    return register


def write_result(result: Any, out: Any) -> Any:
    """Return the result, in the tensor `out` if the caller gave one."""
    return result if out is None else out.copy_(result)


def call_stand_in(name: str, args: Any, options: Any, build: JitBuild | None = None) -> Any:
    """Compute an operator, or raise UnansweredName with the line that called it."""
    if name in _shapes:
        return _run_counted(name, _shapes[name], args, options, build)
    entry = STAND_INS.get(name) or STAND_INS.get(_without_submodules(name))
    if entry is None:
        raise UnansweredName(
            f"no stand-in computes {name}({_describe_arguments(args, options)}), called at "
            f"{find_caller()}: add one to the operators of a plug-in (harness/sanitizer/plugins)"
        )
    return entry.call(name, build, args, options)


def _run_counted(
    name: str,
    function: Callable[..., Any],
    args: Any,
    options: Any,
    build: JitBuild | None = None,
) -> Any:
    """Run a stand-in as one launch and count it, in each replay of a graph also."""

    def count_and_run(*args: Any, **options: Any) -> Any:
        RECORD.count_stand_in(name)
        for observe in tuple(CALL_OBSERVERS):
            observe(name, build, args, options)
        result = function(*args, **options)
        dispatch.report_writes(args, list(options.values()), result)
        return result

    return graphs.run_captured(name, count_and_run, *args, **options)


def has_stand_in(name: str) -> bool:
    return name in STAND_INS or name in _shapes or _without_submodules(name) in STAND_INS


def answer_with_shapes(shapes: Mapping[str, Callable[..., Any]]) -> None:
    """Answer these names by functions that compute nothing, stand-in or not (`dry_run`)."""
    _shapes.update(shapes)


def _without_submodules(name: str) -> str:
    """Name an operator by its package alone: `toy.elementwise.norm` is re-exported."""
    package, _, rest = name.partition(".")
    return f"{package}.{rest.rpartition('.')[2]}"


def _describe_arguments(args: Any, options: Any) -> str:
    described = [_describe_value(value) for value in args]
    described += [f"{name}={_describe_value(value)}" for name, value in options.items()]
    return ", ".join(described)


def _describe_value(value: Any) -> str:
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        return f"{str(value.dtype).removeprefix('torch.')}{list(shape)}"
    return repr(value) if isinstance(value, (int, float, str, type(None))) else type(value).__name__
