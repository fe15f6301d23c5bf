"""From a `@triton.jit` function and a launch's arguments to Triton's own IR, without a GPU.

Triton's binder decides types and constants; its front end and the CUDA backend's first stage do the
rest: calls inlined, integers as wide as when compiled. `adapter` knows how.

Two calls share one IR if `compute_cache_key` is the same. Example: `kernel[(4,)](x, 20, BLOCK=8)`
and `kernel[(9,)](y, 30, BLOCK=8)` on int32 tensors do (`(*i32, i32, constexpr)` and BLOCK=8);
BLOCK=16 is another IR, unless `specialization` has made BLOCK a parameter.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from triton.runtime.jit import JITCallable

from harness.core.code_digest import digest_code
from harness.sanitizer.ir.graph import IROperation
from harness.sanitizer.triton import adapter, read_constants, recorded_launches

CODE_DIGEST = digest_code("sanitizer")
# Beside the compiled kernels: who changes a kernel's source drops the binder as well.
_BINDER_KEY = "read by unfix"


@dataclass(frozen=True, slots=True)
class RuntimeArgument:
    """An argument that the kernel receives at run time."""

    name: str
    type: str  # Triton's notation: "*i32", "i64", …
    value: Any


@dataclass(slots=True)
class BoundCall:
    """One call's arguments, by name, with the types and constants to compile for."""

    values: dict[str, Any]
    types: tuple[Any, ...]  # types in Triton's signature
    constants: tuple[Any, ...]
    key: Any
    specialization: Any = None  # for a call that shares its IR with calls of other constants
    symbolic_arguments: tuple[RuntimeArgument, ...] = ()  # passed in place of those constants
    options: tuple[tuple[str, Any], ...] = ()  # of the launch, as far as the IR depends on them

    def runtime_arguments(self) -> Iterator[RuntimeArgument]:
        for (name, value), argument_type in zip(self.values.items(), self.types, strict=True):
            for path, value_at_path, part_type in _iterate_parts((), value, argument_type):
                if part_type != "constexpr":
                    yield RuntimeArgument(
                        f"{name}{''.join(map('[{}]'.format, path))}", part_type, value_at_path
                    )

    def iterate_constants(self) -> Iterator[tuple[tuple[int, ...], Any]]:
        """Yield constants by path: (2,) is the third parameter, (2, 0) the first part of it."""
        for position, (value, type_) in enumerate(
            zip(self.values.values(), self.types, strict=True)
        ):
            for path, constant, part_type in _iterate_parts((position,), value, type_):
                if part_type == "constexpr":
                    yield path, constant


def _iterate_parts(
    path: tuple[int, ...], value: Any, argument_type: Any
) -> Iterator[tuple[tuple[int, ...], Any, str]]:
    """Yield an argument, or the parts of a tuple, with the type of each."""
    if not isinstance(argument_type, tuple):
        yield path, value, argument_type
        return
    for position, (item, inner) in enumerate(zip(value, argument_type, strict=True)):
        yield from _iterate_parts((*path, position), item, inner)


class CallBinder:
    """Binds calls of one kernel, and caches this process's programs of it."""

    def __init__(self, kernel: Any, constants: str) -> None:
        self._kernel = kernel
        self.constants = constants  # as they were when the programs below were compiled
        self._bind: Callable[..., Any] = adapter.make_argument_binder(kernel)
        self._option_names = adapter.list_options_in_ir(kernel)
        self.programs: dict[Any, Any] = {}  # by a call's key
        self.specializations: dict[str, Any] = {}  # by the key of all but the symbolic constants

    def bind(self, args: tuple[Any, ...], options: dict[str, Any]) -> BoundCall:
        values, specialized, launch_options = self._bind(*args, **options)
        types = tuple(argument_type for argument_type, _ in specialized)
        constants = tuple(map(_make_constant_key, values.values(), types))
        names = self._option_names
        if any(callable(value) and adapter.asks_for_warps(value) for value in values.values()):
            names = (*names, "num_warps")
        named = tuple((name, launch_options[name]) for name in names if name in launch_options)
        if adapter.is_in_debug_mode(self._kernel, options):  # Triton asserts that nothing overflows
            checks_overflow = options.get("sanitize_overflow", True)
            named = (*named, ("sanitize_overflow", checks_overflow))
        key = (types, constants, *named)
        return BoundCall(values, types, constants, key, options=named)

    def record(self, bound: BoundCall, grid: tuple[int, ...] = ()) -> None:
        recorded_launches.record_launch(self._kernel, bound, grid)


def _make_constant_key(value: Any, argument_type: Any) -> Any:
    if isinstance(value, JITCallable):  # its own key has no values that it reads elsewhere
        return value, compute_code_key(value)
    if argument_type == "constexpr":
        # True, 1 and 1.0 are one key of a dictionary and three constants.
        return (type(value), value) if isinstance(value, (bool, int, float)) else value
    if isinstance(argument_type, tuple):
        return tuple(map(_make_constant_key, value, argument_type))
    return None


def get_binder(kernel: Any) -> CallBinder:
    caches = kernel.device_caches
    constants = read_constants.describe_constants(kernel)
    if _BINDER_KEY in caches and (
        constants != caches[_BINDER_KEY].constants or adapter.has_stale_globals(kernel)
    ):
        kernel.hash = None
        del caches[_BINDER_KEY]
    if _BINDER_KEY not in caches:
        caches[_BINDER_KEY] = CallBinder(kernel, constants)
    return caches[_BINDER_KEY]  # type: ignore[no-any-return]


def compute_code_key(kernel: Any) -> str:
    """Return Triton's hash of the sources, with the values that they read elsewhere."""
    return f"{kernel.cache_key} {read_constants.describe_constants(kernel)}"


def compute_cache_key(kernel: Any, bound: BoundCall) -> str:
    """Hash all that the IR of a call depends on, the same in every process."""
    words = [compute_code_key(kernel), kernel.fn.__code__.co_filename, adapter.TRITON_VERSION]
    words += [CODE_DIGEST, sys.version, str(bound.types), str(_to_key(bound.constants))]
    words += map(str, bound.options)
    return hashlib.sha256("\0".join(words).encode()).hexdigest()


def _to_key(value: Any) -> Any:
    if isinstance(value, JITCallable):
        return compute_code_key(value)
    if isinstance(value, (tuple, list)):
        return [_to_key(item) for item in value]
    return value


def compile_to_mlir(kernel: Any, bound: BoundCall) -> str:
    """Return the IR of a call in MLIR's generic form, which `mlir_parser` reads."""
    signature = dict(zip(bound.values, bound.types, strict=True))
    constants = dict(bound.iterate_constants())
    return adapter.compile_to_mlir(kernel, signature, constants, dict(bound.options))


def get_symbolic_expression(operation: IROperation) -> str:
    """Return the expression of constants that an operation stands for, or '' if it is none."""
    symbol = operation.attributes.get("symbol", "").strip('"')
    is_symbolic = symbol.startswith(adapter.SYMBOLIC_PREFIX)
    return symbol.removeprefix(adapter.SYMBOLIC_PREFIX) if is_symbolic else ""
