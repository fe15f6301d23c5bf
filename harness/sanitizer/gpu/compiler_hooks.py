"""Has Triton compile a kernel with checks: a checked kernel, whose IR is rewritten on the way.

The checked kernel is a `JITFunction` of the same code with more parameters in front; binding, keys,
caches and the launcher are Triton's own. Invariant: Triton's disk cache never returns a kernel that
was compiled with other checks or by other code of ours, as the names of those parameters hold a
hash of both. Example: `copy(source, target, n)` becomes `copy(unfix_report_3f…, unfix_launch_3f…,
unfix_extent0_3f…, unfix_extent1_3f…, source, target, n)`. The sites that a report's numbers stand
for travel in the compiled kernel's metadata, under METADATA_KEY.
"""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from harness.core.code_digest import compute_digest, digest_code
from harness.sanitizer.gpu import InstrumentationRequest, instrumentation
from harness.sanitizer.ir import mlir_printer
from harness.sanitizer.ir.graph import SourceLocation
from harness.sanitizer.ir.operation_sites import OperationSite
from harness.sanitizer.triton import adapter, jit_kernels, mlir_parser, specialization

CODE_DIGEST = digest_code("sanitizer")
METADATA_KEY = "unfix"  # in a compiled kernel's metadata
_current_request = threading.local()


class UnforeseenSpecialization(Exception):
    """A kernel that cannot be compiled with its constants as parameters."""


def hash_request(request: InstrumentationRequest) -> str:
    request_text = (
        f"{sorted(request.checks)}{request.overlapping_pointers}{request.symbolic_parameters}"
    )
    return compute_digest(CODE_DIGEST, request_text)[:10]


def build_checked_kernel(kernel: Any, request: InstrumentationRequest) -> Any:
    """Build the kernel with the checks' parameters in front: leading ones, extents, constants."""
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
    unspecialized = [each.name for each in kernel.params if each.do_not_specialize]
    unaligned = [each.name for each in kernel.params if each.do_not_specialize_on_alignment]
    head = re.compile(r"^(\s*def\s+\w+\s*\()", re.MULTILINE)
    return jit_kernels.copy_with_signature(
        kernel,
        inspect.Signature([*heads, *own]),
        head.sub(rf"\1{', '.join(names)}, ", kernel.src, count=1),
        [*names, *unspecialized],
        [*names, *unaligned],
    )


@dataclass(slots=True)
class CompilationCount:
    """What was compiled in a block; a kernel from Triton's disk cache was not."""

    kernels: int = 0


@contextmanager
def compile_with_checks(request: InstrumentationRequest | None) -> Iterator[CompilationCount]:
    """Add checks to the kernels that this thread compiles inside the block."""
    _current_request.now, _current_request.count = request, CompilationCount()
    try:
        yield _current_request.count
    finally:
        _current_request.now = None


def install_compiler_hooks() -> None:
    """Rewrite the IR after the first stage of Triton's CUDA backend; call it once per process."""

    def choose_change() -> adapter.ChangeModule | None:
        request = getattr(_current_request, "now", None)
        if request is None:
            return None
        return lambda module, metadata: instrument_module(module, metadata, request)

    def trace_source(source: Any, make_ir: Callable[[], Any]) -> Any:
        request = getattr(_current_request, "now", None)
        if request is None or not request.symbolic_parameters:
            return make_ir()
        conditions: dict[str, bool] = {}
        traced_values = request.specialization.traced_values
        symbolic_ints = specialization.make_symbolic_ints(traced_values, conditions)
        first = request.leading_parameter_count + len(request.symbolic_parameters)
        constants = source.constants
        source.constants = constants | {
            (first + position,): value for position, value in symbolic_ints.items()
        }
        try:
            with adapter.accept_symbolic_ints():
                module = make_ir()
        finally:
            source.constants = constants
        if not request.specialization.covers_conditions(conditions):
            raise UnforeseenSpecialization("Triton asks more of its constants for this GPU")
        return module

    adapter.hook_compiler(choose_change, trace_source)


def instrument_module(
    module: Any, metadata: dict[str, Any], request: InstrumentationRequest
) -> Any:
    """Return the module with checks, or unchanged; the metadata record which."""
    _current_request.count.kernels += 1
    context = module.context
    text = adapter.print_generic_module(module)
    try:
        graph = mlir_parser.parse_mlir(text)
        if request.symbolic_parameters:
            parameters = graph.parameters[request.leading_parameter_count :]
            graph = specialization.substitute_parameters(
                graph, dict(zip(request.symbolic_parameters, parameters, strict=False))
            )
        checked = instrumentation.instrument_graph(graph, request, 32 * metadata["num_warps"])
    except (instrumentation.InstrumentationRefused, mlir_parser.MlirSyntaxError) as error:
        if request.symbolic_parameters:
            raise UnforeseenSpecialization(str(error)) from error
        metadata[METADATA_KEY] = {"refused": str(error)}
        return adapter.parse_module(text.replace("generic = 1 : i32", ""), context)
    metadata[METADATA_KEY] = to_metadata(checked)
    return adapter.parse_module(mlir_printer.format_mlir(checked.graph), context)


def to_metadata(instrumented: instrumentation.InstrumentedGraph) -> dict[str, Any]:
    return {
        "sites": [_site_to_data(site) for site in instrumented.sites],
        "overflows": [_site_to_data(site) for site in instrumented.overflow_sites],
        "unchecked": instrumented.unchecked_accesses,
    }


# Sites in the metadata, which Triton stores as JSON


def _site_to_data(site: OperationSite) -> list[Any]:
    lines = []
    source: SourceLocation | None = site.source
    while source is not None:
        lines.append([source.file, source.line, source.column])
        source = source.caller
    return [site.label, site.element, lines, site.argument]


def load_sites(compiled: Any, which: str) -> list[OperationSite]:
    """`which`: "sites", those of accesses and assertions, or "overflows"."""
    return [_site_from_data(*data) for data in getattr(compiled.metadata, METADATA_KEY)[which]]


def _site_from_data(
    label: str, element: str, lines: list[list[Any]], argument: int | None
) -> OperationSite:
    source = None
    for file, line, column in reversed(lines):
        source = SourceLocation(file, line, column, source)
    return OperationSite(label, element, source or SourceLocation(), argument)
