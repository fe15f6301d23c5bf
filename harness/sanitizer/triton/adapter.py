"""Everything of Triton that is not its public API, for the modules that read and launch kernels.

Triton has no public interface to read a kernel's IR or to launch a kernel in another way. All that
`harness` uses instead is here, so that a new Triton that moves something breaks this module and
the test that names the part (`tests/sanitizer/checked/test_triton_contract.py`). `jit_kernels`,
beside it, knows the parts of kernel objects; it is imported where Triton may be missing.

The target is the newest one for which descriptors become plain pointers and fp8 is there. Whether a
pointer is aligned changes nothing in the IR, so kernels are not specialized on it here.
"""

from __future__ import annotations

import contextlib
import functools
import re
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any

import triton
import triton.language as tl
from triton._C.libtriton import ir
from triton.backends.nvidia import driver as nvidia_driver
from triton.backends.nvidia.compiler import CUDABackend
from triton.compiler import code_generator
from triton.compiler.compiler import ASTSource, GPUTarget, make_backend
from triton.language.core import constexpr_type
from triton.language.semantic import TritonSemantic
from triton.runtime.autotuner import Autotuner
from triton.runtime.driver import driver
from triton.runtime.jit import JITCallable, JITFunction, create_function_from_signature

from harness.core.preparation import announce_preparation
from harness.sanitizer.device.triton_driver import VirtualDriver, measure_call
from harness.sanitizer.llvm.number_formats import UnsupportedOnCpu
from harness.sanitizer.triton import jit_kernels
from harness.sanitizer.triton.symbolic_int import SymbolicInt
from harness.sanitizer.violations.exceptions import UncheckableKernel

COMPUTE_CAPABILITY = 89
TARGET = GPUTarget("cuda", COMPUTE_CAPABILITY, 32)
TRITON_VERSION: str = triton.__version__
SYMBOLIC_PREFIX = "number "  # begins the name of a symbolic int's operation
# One thread at a time: a second one would take the first one's patch for the original.
_PATCH_LOCK = threading.RLock()

RunKernel = Callable[..., Any]
ChangeModule = Callable[[Any, dict[str, Any]], Any]  # of a module and its metadata


# Reading kernels


def make_argument_binder(kernel: Any) -> Callable[..., Any]:
    """Make Triton's own function from a call's arguments to values, types and constants."""
    return create_function_from_signature(  # type: ignore[no-any-return]
        kernel.signature, kernel.params, make_backend(TARGET)
    )


def expand_descriptor(descriptor: Any) -> list[Any]:
    """List what a kernel receives for a host's descriptor, where those become plain pointers."""
    return list(nvidia_driver.make_tensordesc_arg(descriptor, None))


def has_stale_globals(kernel: Any) -> bool:
    """Return whether a module's constant that the kernel has read has another value now."""
    return any(
        scope.get(name, kernel) is not value and scope.get(name, kernel) != value
        for (name, _), (value, scope) in kernel.used_global_vals.items()
    )


_PRECISION_OPTIONS = ("default_dot_input_precision", "max_num_imprecise_acc_default")
_WARP_QUERIES = frozenset(("num_threads", "num_warps"))  # of triton.language.extra.cuda


def list_options_in_ir(kernel: Any) -> tuple[str, ...]:
    """List the options of a launch that the kernel's IR depends on.

    How many warps there are is none of it, unless the kernel asks. Example: two configurations of
    an autotuned kernel that differ in `num_warps` alone have one IR.
    """
    return (*_PRECISION_OPTIONS, *(["num_warps"] if asks_for_warps(kernel) else []))


def asks_for_warps(function: Any) -> bool:
    """Return whether a kernel, or a function that one gets as a constant, asks for its threads."""
    if not isinstance(function, JITCallable):
        return getattr(function, "__name__", "") in _WARP_QUERIES
    codes = [called.fn.__code__ for called in jit_kernels.collect_called_kernels(function)]
    return any(not _WARP_QUERIES.isdisjoint(code.co_names) for code in codes)


def is_in_debug_mode(kernel: Any, options: dict[str, Any]) -> bool:
    return bool(options.get("debug", kernel.debug) or triton.knobs.runtime.debug)


def check_options(options: dict[str, Any]) -> None:
    """Raise Triton's own error for options of a launch that it does not take on this card."""
    if file := options.get("ir_override"):
        raise UncheckableKernel(f"ir_override: {file} would run in place of the kernel")
    known = make_backend(driver.active.get_current_target()).parse_options(options).__dict__
    for name in options:
        if name not in known:
            raise KeyError(f"Keyword argument {name} was specified but unrecognised")


def compile_to_mlir(
    kernel: Any,
    signature: dict[str, Any],
    constants: dict[tuple[int, ...], Any],
    launch_options: dict[str, Any] | None = None,
) -> str:
    """Return the kernel's IR in MLIR's generic form, with one syntax for all operations."""
    backend = make_backend(TARGET)
    # The kernel's own assertions are kept; those of overflow are, where a card has them.
    own = {"debug": True, "sanitize_overflow": False}
    options = backend.parse_options(own | (launch_options or {}))
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    hooks = backend.get_codegen_implementation(options), backend.get_module_map(), context
    with accept_symbolic_ints(), _cache_parsed_sources(), _inline_all_calls():
        module = ASTSource(kernel, signature, constants, {}).make_ir(TARGET, options, *hooks)
    descriptors = sorted(set(re.findall(r"tt\.descriptor_\w+", str(module))))
    try:
        module = backend.make_ttir(module, {}, options, COMPUTE_CAPABILITY)
    except RuntimeError as error:
        if not descriptors:
            raise
        words = f"no plain accesses do the same as {' or '.join(descriptors)}"
        raise UnsupportedOnCpu(words) from error
    return print_generic_module(module)


def print_generic_module(module: Any) -> str:
    """Return a module's text in MLIR's generic form."""
    # MLIR prints a module that it takes for invalid in the generic form: this name has no dialect.
    module.set_attr("generic", ir.builder(module.context).get_int32_attr(1))
    return str(module.str())


_original_parse = JITCallable.parse
_syntax_trees: dict[str, Any] = {}  # by source text


def get_syntax_tree(kernel: Any) -> Any:
    """Return a kernel's syntax tree, shared by all that read it: not to be changed."""
    if kernel.src not in _syntax_trees:
        _syntax_trees[kernel.src] = _original_parse(kernel)
    return _syntax_trees[kernel.src]


@contextlib.contextmanager
def _replace_method(cls: Any, name: str, make_method: Callable[[Any], Any]) -> Iterator[None]:
    """Replace a method of Triton's by one that may call it, in the block."""
    with _PATCH_LOCK:
        before = getattr(cls, name)
        setattr(cls, name, make_method(before))
        try:
            yield
        finally:
            setattr(cls, name, before)


def _cache_parsed_sources() -> contextlib.AbstractContextManager[None]:
    """Parse each helper once. Triton parses it at every call, and marks it alike each time."""
    return _replace_method(JITCallable, "parse", lambda before: get_syntax_tree)


def _inline_all_calls() -> contextlib.AbstractContextManager[None]:
    """Inline helpers that are marked `noinline`, too: they compute the same."""

    def make_initializer(before: Any) -> Any:
        return lambda self, *args, **options: before(self, *args, **options | {"noinline": False})

    return _replace_method(code_generator.CodeGenerator, "__init__", make_initializer)


@contextlib.contextmanager
def accept_symbolic_ints() -> Iterator[None]:
    """Let the front end write a symbolic int into the IR: an operation of unknown result."""

    def make_scalar_constant(before: Any) -> Any:
        def scalar_constant(semantic: Any, value: Any, dtype: Any) -> Any:
            is_symbolic = type(value) is SymbolicInt and dtype.is_int()
            if (
                not is_symbolic
                or dtype.int_bitwidth not in (32, 64)
                or not dtype.get_int_min_value() <= value <= dtype.get_int_max_value()
            ):
                return before(semantic, value, dtype)
            builder, name = semantic.builder, f"{SYMBOLIC_PREFIX}{value.expression}"
            kind = dtype.to_ir(builder)
            handle = builder.create_extern_elementwise("", "", name, [], kind, True)
            return semantic.tensor(handle, dtype)

        return scalar_constant

    def make_representation(before: Any) -> Any:
        """The type's own text would read the number, and record a condition on it."""
        return lambda kind: f"constexpr_type[{kind.value!r}]"

    with (
        _replace_method(TritonSemantic, "scalar_constant", make_scalar_constant),
        _replace_method(constexpr_type, "__repr__", make_representation),
    ):
        code_generator._condition_types.add(SymbolicInt)
        try:
            yield
        finally:
            code_generator._condition_types.discard(SymbolicInt)


# Launching kernels


def is_interpreting() -> bool:
    """Return whether this process runs kernels in Triton's interpreter (TRITON_INTERPRET=1)."""
    return not isinstance(tl.sum, JITFunction)


class _CpuDriver(VirtualDriver):
    """A driver without a device, for sessions in which tensors are the CPU's."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cpu")


_original_bench, _original_prune = Autotuner._bench, Autotuner.prune_configs


@contextlib.contextmanager
def run_launches_with(
    run: RunKernel,
    check: RunKernel,
    on_tuned: Callable[[str, int], None],
    all_configurations: bool = False,
) -> Iterator[None]:
    """Have `run` launch every kernel, without a GPU or a real driver.

    Of an autotuned kernel the first configuration is launched that `check` does not refuse, for
    none is faster here, and `on_tuned` gets its name and how many it has. With `all_configurations`
    each one is launched once before, as on a GPU. No timings are kept on disk: a GPU's would be
    lost.
    """
    import torch

    run_before = jit_kernels.replace_run(JITFunction, run)
    replaced = {
        name: Autotuner.__dict__[name] for name in ("_bench", "check_disk_cache", "prune_configs")
    }
    active = driver._active

    is_found = False

    def prune(tuner: Any, options: dict[str, Any]) -> Any:  # a tuning begins
        nonlocal is_found
        is_found = False
        return _original_prune(tuner, options)

    def check_first(launch: Callable[[], None]) -> None:
        nonlocal is_found
        if not is_found:
            before = jit_kernels.replace_run(JITFunction, check)
            try:
                launch()
            finally:
                jit_kernels.replace_run(JITFunction, before)
            is_found = True

    def measure_nothing(launch: Callable[[], None], *args: Any, **options: Any) -> Any:
        call = launch if all_configurations else functools.partial(check_first, launch)
        return measure_call(call, *args, **options)

    def bench(tuner: Any, *args: Any, **options: Any) -> Any:
        on_tuned(tuner.base_fn.__name__, len(tuner.configs))
        tuner.__dict__["do_bench"] = measure_nothing
        try:
            return _original_bench(tuner, *args, **options)
        finally:
            del tuner.__dict__["do_bench"]

    def tune(tuner: Any, key: Any, configs: Any, bench_all: Callable[[], None]) -> bool:
        bench_all()
        return False

    Autotuner._bench, Autotuner.check_disk_cache, Autotuner.prune_configs = bench, tune, prune
    if not torch.cuda.is_available():
        driver.set_active(_CpuDriver())
    try:
        yield
    finally:
        driver._active = active
        for name, function in replaced.items():
            setattr(Autotuner, name, function)
        jit_kernels.replace_run(JITFunction, run_before)


# Compiling kernels for a GPU


def announce_calls(function: Callable[..., Any]) -> Callable[..., Any]:
    """Announce each call as preparation: it is no part of what a test takes."""

    @functools.wraps(function)
    def call_announced(*args: Any, **options: Any) -> Any:
        with announce_preparation():
            return function(*args, **options)

    return call_announced


def hook_compiler(
    choose_change: Callable[[], ChangeModule | None],
    trace_source: Callable[[Any, Callable[[], Any]], Any],
) -> None:
    """Hook into every compilation for CUDA; a second call changes nothing.

    Each part of it is announced as preparation. `choose_change` says what is done to the module
    behind the backend's first stage. `trace_source` gets a source and the function that traces it,
    and returns the module.
    """
    before = CUDABackend.add_stages
    if getattr(before, "by_unfix", False):
        return

    @functools.wraps(before)
    def add_stages(backend: Any, stages: dict[str, Any], *args: Any, **options: Any) -> None:
        before(backend, stages, *args, **options)
        change = choose_change()
        if change is not None and "ttir" in stages:
            first = stages["ttir"]
            stages["ttir"] = lambda module, metadata: change(first(module, metadata), metadata)
        for name, stage in stages.items():
            stages[name] = announce_calls(stage)

    add_stages.by_unfix = True  # type: ignore[attr-defined]
    CUDABackend.add_stages = add_stages
    original_make_ir = ASTSource.make_ir

    @announce_calls
    def make_ir(source: Any, *args: Any, **options: Any) -> Any:
        return trace_source(source, lambda: original_make_ir(source, *args, **options))

    ASTSource.make_ir = make_ir


def parse_module(text: str, context: Any) -> Any:
    with tempfile.NamedTemporaryFile("w", suffix=".ttir") as file:
        file.write(text)
        file.flush()
        module = ir.parse_mlir_module(file.name, context)
    module.context = context
    return module
