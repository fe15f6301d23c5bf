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
from typing import Any

import triton
from triton._C.libtriton import ir
from triton.compiler import code_generator
from triton.compiler.compiler import ASTSource, GPUTarget, make_backend
from triton.language.core import constexpr_type
from triton.language.semantic import TritonSemantic
from triton.runtime.jit import JITCallable, create_function_from_signature

from harness.core.code_digest import digest_code
from harness.kernels.ir.graph import IROperation
from harness.kernels.triton import recorded_launches
from harness.kernels.triton.symbolic_int import SymbolicInt

# Whatever of Triton is swapped for a while: one thread at a time, or it stays so behind both.
_PATCH_LOCK = threading.RLock()
COMPUTE_CAPABILITY = 89
TARGET = GPUTarget("cuda", COMPUTE_CAPABILITY, 32)
_BINDER_KEY = (
    "read by unfix"  # beside the compiled kernels, so that whoever sets those aside takes it along
)
_SYMBOLIC_PREFIX = "number "
CODE_DIGEST = digest_code("kernels")


@dataclass(frozen=True, slots=True)
class RuntimeArgument:
    """What the kernel is given at run time: a name, a type as Triton writes it, the value."""

    name: str
    type: str
    value: Any


@dataclass(slots=True)
class BoundCall:
    """One call's arguments, by name, and what the kernel is compiled for."""

    values: dict[str, Any]
    types: tuple[Any, ...]  # as Triton's signature has them
    constants: tuple[Any, ...]
    key: Any
    specialization: Any = None  # of its constants, if it is one call of all that share an IR
    symbolic_arguments: tuple[RuntimeArgument, ...] = ()  # that it hands over in their place

    def runtime_arguments(self) -> Iterator[RuntimeArgument]:
        for (name, value), kind in zip(self.values.items(), self.types, strict=True):
            yield from _flatten_argument(name, value, kind)


def _flatten_argument(name: str, value: Any, argument_type: Any) -> Iterator[RuntimeArgument]:
    if isinstance(argument_type, tuple):
        for place, (part, inner) in enumerate(zip(value, argument_type, strict=True)):
            yield from _flatten_argument(f"{name}[{place}]", part, inner)
    elif argument_type != "constexpr":
        yield RuntimeArgument(name, argument_type, value)


class CallBinder:
    """Binds calls of one kernel. Kept on the kernel, where a toggle that swaps it takes it away."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._bind = create_function_from_signature(
            kernel.signature, kernel.params, make_backend(TARGET)
        )
        self.programs: dict[Any, Any] = {}  # what was made of the kernel, by a call's key
        self.specializations: dict[
            str, Any
        ] = {}  # how its constants are taken, by all else of a call

    def bind(self, args: tuple[Any, ...], options: dict[str, Any]) -> BoundCall:
        values, specialised, _ = self._bind(*args, **options)
        kinds = tuple(kind for kind, _ in specialised)
        constants = tuple(
            _make_constant_key(value, kind)
            for value, kind in zip(values.values(), kinds, strict=True)
        )
        bound = BoundCall(values, kinds, constants, (kinds, constants))
        recorded_launches.record_launch(self._kernel, bound)
        return bound


def _make_constant_key(value: Any, argument_type: Any) -> Any:
    if argument_type == "constexpr":
        # True, 1 and 1.0 are one key of a dictionary and three constants.
        return (type(value), value) if isinstance(value, (bool, int, float)) else value
    if isinstance(argument_type, tuple):
        return tuple(
            _make_constant_key(part, inner)
            for part, inner in zip(value, argument_type, strict=True)
        )
    return None


def expand_descriptor(descriptor: Any) -> list[Any]:
    """What a kernel gets for a descriptor that the host made, where it becomes plain pointers."""
    from triton.backends.nvidia.driver import make_tensordesc_arg

    return list(make_tensordesc_arg(descriptor, None))


def get_binder(kernel: Any) -> CallBinder:
    caches = kernel.device_caches
    if _BINDER_KEY not in caches:
        caches[_BINDER_KEY] = CallBinder(kernel)
    elif _has_stale_globals(kernel):
        kernel.hash = None
        caches[_BINDER_KEY] = CallBinder(kernel)
    return caches[_BINDER_KEY]  # type: ignore[no-any-return]


def _has_stale_globals(kernel: Any) -> bool:
    """A constant of a module that the kernel read is another one now."""
    return any(
        scope.get(name, kernel) is not value and scope.get(name, kernel) != value
        for (name, _), (value, scope) in kernel.used_global_vals.items()
    )


def compute_cache_key(kernel: Any, bound: BoundCall) -> str:
    """What a kernel's IR depends on, across processes."""
    words = [kernel.cache_key, kernel.fn.__code__.co_filename, triton.__version__, CODE_DIGEST]
    words += [str(bound.types), str(_to_key(bound.constants))]
    return hashlib.sha256("\0".join(words).encode()).hexdigest()


def _to_key(value: Any) -> Any:
    if isinstance(value, JITCallable):
        return value.cache_key
    if isinstance(value, (tuple, list)):
        return [_to_key(part) for part in value]
    return value


def compile_to_mlir(kernel: Any, bound: BoundCall) -> str:
    """The kernel's IR in MLIR's generic form, where every operation is written alike."""
    backend = make_backend(TARGET)
    # Wraps are watched by whoever runs the kernel; its own assertions are worth having.
    options = backend.parse_options({"debug": True, "sanitize_overflow": False})
    signature = dict(zip(bound.values, bound.types, strict=True))
    constants = dict(_iterate_constants(bound))
    source = ASTSource(kernel, signature, constants, {})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    with accept_symbolic_ints(), _cache_parsed_sources():
        module = source.make_ir(
            TARGET,
            options,
            backend.get_codegen_implementation(options),
            backend.get_module_map(),
            context,
        )
    module = backend.make_ttir(module, {}, options, COMPUTE_CAPABILITY)
    # A module that MLIR thinks invalid is printed in the generic form: this name has no dialect.
    module.set_attr("generic", ir.builder(context).get_int32_attr(1))
    return str(module.str())


@contextlib.contextmanager
def _cache_parsed_sources() -> Iterator[None]:
    """Triton would parse a helper each time that it is called, and marks nothing in it but what a
    second reading marks again."""
    with _PATCH_LOCK:
        before = JITCallable.parse
        JITCallable.parse = get_syntax_tree
        try:
            yield
        finally:
            JITCallable.parse = before


_original_parse = JITCallable.parse
_syntax_trees: dict[str, Any] = {}  # by their text


def get_syntax_tree(kernel: Any) -> Any:
    """A kernel's syntax, not to be changed."""
    found = _syntax_trees.get(kernel.src)
    if found is None:
        found = _syntax_trees[kernel.src] = _original_parse(kernel)
    return found


def _iterate_constants(bound: BoundCall) -> Iterator[tuple[tuple[int, ...], Any]]:
    for place, (value, kind) in enumerate(zip(bound.values.values(), bound.types, strict=True)):
        yield from _iterate_constant_paths((place,), value, kind)


def _iterate_constant_paths(
    path: tuple[int, ...], value: Any, argument_type: Any
) -> Iterator[tuple[tuple[int, ...], Any]]:
    if argument_type == "constexpr":
        yield path, value
    elif isinstance(argument_type, tuple):
        for place, (part, inner) in enumerate(zip(value, argument_type, strict=True)):
            yield from _iterate_constant_paths((*path, place), part, inner)


# Numbers in the place of constants


@contextlib.contextmanager
def accept_symbolic_ints() -> Iterator[None]:
    """A loose integer is put into the IR as an operation that nobody knows anything about."""
    with _PATCH_LOCK:
        before, printed = TritonSemantic.scalar_constant, constexpr_type.__repr__

        def scalar_constant(semantic: Any, value: Any, dtype: Any) -> Any:
            if (
                type(value) is not SymbolicInt
                or not dtype.is_int()
                or dtype.int_bitwidth not in (32, 64)
            ):
                return before(semantic, value, dtype)
            least, most = dtype.get_int_min_value(), dtype.get_int_max_value()
            if not least <= value <= most:
                return before(semantic, value, dtype)
            kind = dtype.to_ir(semantic.builder)
            name = f"{_SYMBOLIC_PREFIX}{value.expression}"
            handle = semantic.builder.create_extern_elementwise("", "", name, [], kind, True)
            return semantic.tensor(handle, dtype)

        TritonSemantic.scalar_constant = scalar_constant
        constexpr_type.__repr__ = lambda kind: f"constexpr_type[{kind.value!r}]"  # without asking
        code_generator._condition_types.add(SymbolicInt)
        try:
            yield
        finally:
            code_generator._condition_types.discard(SymbolicInt)
            TritonSemantic.scalar_constant, constexpr_type.__repr__ = before, printed


def get_symbolic_expression(operation: IROperation) -> str:
    """How the number comes about that an operation stands for; nothing of any other one."""
    symbol = operation.attributes.get("symbol", "").strip('"')
    return symbol.removeprefix(_SYMBOLIC_PREFIX) if symbol.startswith(_SYMBOLIC_PREFIX) else ""
