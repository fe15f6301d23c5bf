"""How Triton is made to compile a kernel with checks: a twin of it, its IR rewritten.

The twin is a `JITFunction` of the same code whose parameters begin with the check's; binding,
keys, caches and the launcher are Triton's own. Their names hold what the rewriting depends on, so
that Triton's cache on disk never hands out one for the other. What a report needs to be told
travels in the kernel's metadata.
"""

from __future__ import annotations

import functools
import inspect
import re
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

from triton._C.libtriton import ir
from triton.backends.nvidia.compiler import CUDABackend
from triton.compiler.compiler import ASTSource

from harness.core.code_digest import compute_digest, digest_code
from harness.kernels.cpu.scratch_values import OperationSite
from harness.kernels.gpu import InstrumentationRequest, instrumentation
from harness.kernels.ir import mlir_printer
from harness.kernels.ir.graph import SourceLocation
from harness.kernels.triton import adapter, mlir_parser, specialization
from harness.patching import jit_kernels as patching

METADATA_KEY = "unfix"  # in a compiled kernel's metadata
_current_request = threading.local()


class UnforeseenSpecialization(Exception):
    """What cannot be compiled with numbers in the place of constants as it was read here."""


def hash_request(request: InstrumentationRequest) -> str:
    request_text = f"{sorted(request.checks)}{request.overlapping_pointers}"
    return compute_digest(digest_code("kernels"), request_text)[:10]


def build_checked_kernel(kernel: Any, request: InstrumentationRequest) -> Any:
    """The same kernel, with what is asked for, that many extents, and a parameter for each number
    in the place of a constant before all else."""
    mark = hash_request(request)
    names = [f"unfix_{name}_{mark}" for name in request.leading_parameters]
    names += [f"unfix_extent{number}_{mark}" for number in range(request.pointer_count)]
    kinds = ["i64"] * len(names) + [kind for _, kind in request.symbolic_parameters]
    names += [f"unfix_number{number}_{mark}" for number in range(len(request.symbolic_parameters))]
    own = list(kernel.signature.parameters.values())
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    heads = [
        inspect.Parameter(name, kind, annotation=annotation)
        for name, annotation in zip(names, kinds, strict=True)
    ]
    old = kernel.fn
    made = FunctionType(old.__code__, old.__globals__, old.__name__, None, old.__closure__)
    made.__qualname__, made.__module__, made.__doc__ = old.__qualname__, old.__module__, old.__doc__
    made.__signature__ = inspect.Signature([*heads, *own])  # type: ignore[attr-defined]
    singled = [one.name for one in kernel.params if one.do_not_specialize]
    unaligned = [one.name for one in kernel.params if one.do_not_specialize_on_alignment]
    fresh = patching.make_similar_kernel(kernel, made, [*names, *singled], [*names, *unaligned])
    head = re.compile(r"^(\s*def\s+\w+\s*\()", re.MULTILINE)
    fresh._unsafe_update_src(head.sub(rf"\1{', '.join(names)}, ", kernel.src, count=1))
    fresh.raw_src, fresh.starting_line_number = kernel.raw_src, kernel.starting_line_number
    return fresh


@contextmanager
def compile_with_checks(request: InstrumentationRequest | None) -> Iterator[None]:
    """What this thread compiles meanwhile gets checks."""
    _current_request.now = request
    try:
        yield
    finally:
        _current_request.now = None


def install_compiler_hooks() -> None:
    """Have Triton ask here after the first stage of what it compiles for CUDA. Once a process."""
    before = CUDABackend.add_stages
    if getattr(before, "by_unfix", False):
        return

    @functools.wraps(before)
    def add_stages(backend: Any, stages: dict[str, Any], *more: Any, **named: Any) -> None:
        before(backend, stages, *more, **named)
        asked = getattr(_current_request, "now", None)
        if asked is None or "ttir" not in stages:
            return
        first = stages["ttir"]
        stages["ttir"] = lambda module, metadata: instrument_module(
            first(module, metadata), metadata, asked
        )

    add_stages.by_unfix = True  # type: ignore[attr-defined]
    CUDABackend.add_stages = add_stages
    read = ASTSource.make_ir

    def make_ir(source: Any, *how: Any, **named: Any) -> Any:
        asked = getattr(_current_request, "now", None)
        if asked is None or not asked.symbolic_parameters:
            return read(source, *how, **named)
        heard: dict[str, bool] = {}
        first = asked.leading_parameter_count + len(asked.symbolic_parameters)
        constants, loose = (
            source.constants,
            specialization.make_symbolic_ints(asked.specialization.traced_values, heard),
        )
        source.constants = constants | {(first + place,): one for place, one in loose.items()}
        try:
            with adapter.accept_symbolic_ints():
                module = read(source, *how, **named)
        finally:
            source.constants = constants
        if not asked.specialization.covers_conditions(heard):
            raise UnforeseenSpecialization("Triton asks more of its constants for this GPU")
        return module

    ASTSource.make_ir = make_ir


def instrument_module(
    module: Any, metadata: dict[str, Any], request: InstrumentationRequest
) -> Any:
    """The module with checks, or as it was; the metadata say which."""
    context = module.context
    module.set_attr("generic", ir.builder(context).get_int32_attr(1))
    text = str(module.str())
    try:
        graph = mlir_parser.parse_mlir(text)
        if request.symbolic_parameters:
            given = graph.parameters[request.leading_parameter_count :]
            graph = specialization.substitute_parameters(
                graph, dict(zip(request.symbolic_parameters, given, strict=False))
            )
        found = instrumentation.instrument_graph(graph, request, 32 * metadata["num_warps"])
    except (instrumentation.InstrumentationRefused, mlir_parser.MlirSyntaxError) as error:
        if request.symbolic_parameters:
            raise UnforeseenSpecialization(str(error)) from error
        metadata[METADATA_KEY] = {"refused": str(error)}
        return _parse_module(text.replace("generic = 1 : i32", ""), context)
    metadata[METADATA_KEY] = to_metadata(found)
    return _parse_module(mlir_printer.format_mlir(found.graph), context)


def to_metadata(instrumented: instrumentation.InstrumentedGraph) -> dict[str, Any]:
    return {
        "sites": [_site_to_data(site) for site in instrumented.sites],
        "wraps": [_site_to_data(site) for site in instrumented.overflow_sites],
        "unchecked": instrumented.unchecked_accesses,
    }


def _parse_module(text: str, context: Any) -> Any:
    with tempfile.NamedTemporaryFile("w", suffix=".ttir") as file:
        file.write(text)
        file.flush()
        module = ir.parse_mlir_module(file.name, context)
    module.context = context
    return module


# Sites, as the metadata keep them


def _site_to_data(site: OperationSite) -> list[Any]:
    lines = []
    source: SourceLocation | None = site.source
    while source is not None:
        lines.append([source.file, source.line, source.column])
        source = source.caller
    return [site.label, site.element, lines, site.argument]


def load_sites(compiled: Any, which: str) -> list[OperationSite]:
    return [_site_from_data(*data) for data in getattr(compiled.metadata, METADATA_KEY)[which]]


def _site_from_data(
    what: str, element: str, lines: list[list[Any]], argument: int | None
) -> OperationSite:
    source = None
    for file, line, column in reversed(lines):
        source = SourceLocation(file, line, column, source)
    return OperationSite(what, element, source or SourceLocation(), argument)
