"""From a `@triton.jit` function and the arguments of a launch to Triton's own IR, without a GPU.

Triton's binder decides types and constants, its front end and the CUDA backend's first stage do the
rest: calls inlined, integers as wide as when compiled. The target is the newest one for which
descriptors become plain pointers and fp8 is there. Whether a pointer is aligned changes nothing in
that IR, so it is not part of what a kernel is specialised on here.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton._C.libtriton import ir
from triton.compiler import code_generator
from triton.compiler.compiler import ASTSource, GPUTarget, make_backend
from triton.language.core import constexpr_type
from triton.language.semantic import TritonSemantic
from triton.runtime.jit import JITCallable, create_function_from_signature

from harness.kernels import launched
from harness.kernels.graph import Operation
from harness.kernels.loose import Loose

# Whatever of Triton is swapped for a while: one thread at a time, or it stays so behind both.
_SWAPPING = threading.RLock()
CAPABILITY = 89
TARGET = GPUTarget("cuda", CAPABILITY, 32)
_KEPT = (
    "read by unfix"  # beside the compiled kernels, so that whoever sets those aside takes it along
)
_NUMBER = "number "
_CODE = hashlib.sha256(
    "".join(file.read_text() for file in sorted(Path(__file__).parent.glob("*.py"))).encode()
).hexdigest()


@dataclass(frozen=True, slots=True)
class Argument:
    """What the kernel is given at run time: a name, a type as Triton writes it, the value."""

    name: str
    kind: str
    value: Any


@dataclass(slots=True)
class Bound:
    """One call's arguments, by name, and what the kernel is compiled for."""

    values: dict[str, Any]
    kinds: tuple[Any, ...]  # as Triton's signature has them
    constants: tuple[Any, ...]
    key: Any
    way: Any = None  # of its constants, if it is one call of all that share an IR
    numbers: tuple[Argument, ...] = ()  # that it hands over in their place

    def arguments(self) -> Iterator[Argument]:
        for (name, value), kind in zip(self.values.items(), self.kinds, strict=True):
            yield from _flattened(name, value, kind)


def _flattened(name: str, value: Any, kind: Any) -> Iterator[Argument]:
    if isinstance(kind, tuple):
        for place, (part, inner) in enumerate(zip(value, kind, strict=True)):
            yield from _flattened(f"{name}[{place}]", part, inner)
    elif kind != "constexpr":
        yield Argument(name, kind, value)


class Binder:
    """Binds calls of one kernel. Kept on the kernel, where a toggle that swaps it takes it away."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._bind = create_function_from_signature(
            kernel.signature, kernel.params, make_backend(TARGET)
        )
        self.programs: dict[Any, Any] = {}  # what was made of the kernel, by a call's key
        self.ways: dict[str, Any] = {}  # how its constants are taken, by all else of a call

    def bind(self, args: tuple[Any, ...], options: dict[str, Any]) -> Bound:
        values, specialised, _ = self._bind(*args, **options)
        kinds = tuple(kind for kind, _ in specialised)
        constants = tuple(
            _constant(value, kind) for value, kind in zip(values.values(), kinds, strict=True)
        )
        bound = Bound(values, kinds, constants, (kinds, constants))
        launched.note(self._kernel, bound)
        return bound


def _constant(value: Any, kind: Any) -> Any:
    if kind == "constexpr":
        # True, 1 and 1.0 are one key of a dictionary and three constants.
        return (type(value), value) if isinstance(value, (bool, int, float)) else value
    if isinstance(kind, tuple):
        return tuple(_constant(part, inner) for part, inner in zip(value, kind, strict=True))
    return None


def handed_over(descriptor: Any) -> list[Any]:
    """What a kernel gets for a descriptor that the host made, where it becomes plain pointers."""
    from triton.backends.nvidia.driver import make_tensordesc_arg

    return list(make_tensordesc_arg(descriptor, None))


def binder_of(kernel: Any) -> Binder:
    caches = kernel.device_caches
    if _KEPT not in caches:
        caches[_KEPT] = Binder(kernel)
    elif _stale(kernel):
        kernel.hash = None
        caches[_KEPT] = Binder(kernel)
    return caches[_KEPT]  # type: ignore[no-any-return]


def _stale(kernel: Any) -> bool:
    """A constant of a module that the kernel read is another one now."""
    return any(
        scope.get(name, kernel) is not value and scope.get(name, kernel) != value
        for (name, _), (value, scope) in kernel.used_global_vals.items()
    )


def key_of(kernel: Any, bound: Bound) -> str:
    """What a kernel's IR depends on, across processes."""
    words = [kernel.cache_key, kernel.fn.__code__.co_filename, triton.__version__, _CODE]
    words += [str(bound.kinds), str(_keyed(bound.constants))]
    return hashlib.sha256("\0".join(words).encode()).hexdigest()


def _keyed(value: Any) -> Any:
    if isinstance(value, JITCallable):
        return value.cache_key
    if isinstance(value, (tuple, list)):
        return [_keyed(part) for part in value]
    return value


def generic_text(kernel: Any, bound: Bound) -> str:
    """The kernel's IR in MLIR's generic form, where every operation is written alike."""
    backend = make_backend(TARGET)
    # Wraps are watched by whoever runs the kernel; its own assertions are worth having.
    options = backend.parse_options({"debug": True, "sanitize_overflow": False})
    signature = dict(zip(bound.values, bound.kinds, strict=True))
    constants = dict(_constant_paths(bound))
    source = ASTSource(kernel, signature, constants, {})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    with loosely(), _parsed_once():
        module = source.make_ir(
            TARGET,
            options,
            backend.get_codegen_implementation(options),
            backend.get_module_map(),
            context,
        )
    module = backend.make_ttir(module, {}, options, CAPABILITY)
    # A module that MLIR thinks invalid is printed in the generic form: this name has no dialect.
    module.set_attr("generic", ir.builder(context).get_int32_attr(1))
    return str(module.str())


@contextlib.contextmanager
def _parsed_once() -> Iterator[None]:
    """Triton would parse a helper each time that it is called, and marks nothing in it but what a
    second reading marks again."""
    with _SWAPPING:
        before = JITCallable.parse
        JITCallable.parse = tree_of
        try:
            yield
        finally:
            JITCallable.parse = before


_parse = JITCallable.parse
_trees: dict[str, Any] = {}  # by their text


def tree_of(kernel: Any) -> Any:
    """A kernel's syntax, not to be changed."""
    found = _trees.get(kernel.src)
    if found is None:
        found = _trees[kernel.src] = _parse(kernel)
    return found


def _constant_paths(bound: Bound) -> Iterator[tuple[tuple[int, ...], Any]]:
    for place, (value, kind) in enumerate(zip(bound.values.values(), bound.kinds, strict=True)):
        yield from _paths((place,), value, kind)


def _paths(path: tuple[int, ...], value: Any, kind: Any) -> Iterator[tuple[tuple[int, ...], Any]]:
    if kind == "constexpr":
        yield path, value
    elif isinstance(kind, tuple):
        for place, (part, inner) in enumerate(zip(value, kind, strict=True)):
            yield from _paths((*path, place), part, inner)


# Numbers in the place of constants


@contextlib.contextmanager
def loosely() -> Iterator[None]:
    """A loose integer is put into the IR as an operation that nobody knows anything about."""
    with _SWAPPING:
        before, printed = TritonSemantic.scalar_constant, constexpr_type.__repr__

        def scalar_constant(semantic: Any, value: Any, dtype: Any) -> Any:
            if type(value) is not Loose or not dtype.is_int() or dtype.int_bitwidth not in (32, 64):
                return before(semantic, value, dtype)
            least, most = dtype.get_int_min_value(), dtype.get_int_max_value()
            if not least <= value <= most:
                return before(semantic, value, dtype)
            kind = dtype.to_ir(semantic.builder)
            name = f"{_NUMBER}{value.text}"
            handle = semantic.builder.create_extern_elementwise("", "", name, [], kind, True)
            return semantic.tensor(handle, dtype)

        TritonSemantic.scalar_constant = scalar_constant
        constexpr_type.__repr__ = lambda kind: f"constexpr_type[{kind.value!r}]"  # without asking
        code_generator._condition_types.add(Loose)
        try:
            yield
        finally:
            code_generator._condition_types.discard(Loose)
            TritonSemantic.scalar_constant, constexpr_type.__repr__ = before, printed


def number_of(operation: Operation) -> str:
    """How the number comes about that an operation stands for; nothing of any other one."""
    symbol = operation.attributes.get("symbol", "").strip('"')
    return symbol.removeprefix(_NUMBER) if symbol.startswith(_NUMBER) else ""
