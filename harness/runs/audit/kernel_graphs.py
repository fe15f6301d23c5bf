"""The graph of a kernel for assumed parameters, or for others where Triton refuses these."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from harness.core.cache import get_or_compute
from harness.runs.audit.parameter_inference import SOURCE_UNUSED, AssumedParameter
from harness.sanitizer.ir.graph import KernelGraph
from harness.sanitizer.triton import frontend, mlir_parser
from harness.sanitizer.triton.frontend import BoundCall


def read_graph(kernel: Any, parameters: list[AssumedParameter]) -> KernelGraph:
    """Read the graph of a kernel with these parameters; graphs are cached on disk."""
    bound = make_bound_call(parameters)
    key = frontend.compute_cache_key(kernel, bound)
    return get_or_compute(
        "graphs", key, lambda: mlir_parser.parse_mlir(frontend.compile_to_mlir(kernel, bound))
    )


def make_bound_call(parameters: list[AssumedParameter]) -> BoundCall:
    values = {each.name: each.value for each in parameters}
    kinds = tuple(each.kind for each in parameters)
    constants = tuple(each.value if each.kind == "constexpr" else None for each in parameters)
    return BoundCall(values, kinds, constants, (kinds, constants))


def iterate_guesses(assumed_parameters: list[AssumedParameter]) -> Iterator[list[AssumedParameter]]:
    """Iterate the parameters, then variants that change those inferred from a name alone."""
    yield assumed_parameters
    tried = [assumed_parameters]
    small = [_shrink_constant(each) for each in assumed_parameters]
    for guess in _GUESSES:
        for start in (assumed_parameters, small, tried[-1]):
            variant = [guess(each) for each in start]
            if variant not in tried:
                tried.append(variant)
                yield variant


def _shrink_constant(parameter: AssumedParameter) -> AssumedParameter:
    is_guess = parameter.kind == "constexpr" and parameter.source in ("name", "host", "default")
    is_number = isinstance(parameter.value, int) and not isinstance(parameter.value, bool)
    is_large = is_guess and is_number and parameter.value > 32
    return replace(parameter, value=32) if is_large else parameter


# Each is tried alone, with smaller constants, and together with the guesses before it.
_GUESSES: tuple[Callable[[AssumedParameter], AssumedParameter], ...] = (
    lambda each: replace(each, kind="fp32") if each.source == SOURCE_UNUSED else each,
    _shrink_constant,
    lambda each: _replace_named_type(each, "*i8", "*i1"),
    lambda each: replace(each, kind="i32") if each.kind == "i64" else each,
    lambda each: replace(each, kind="*i32") if each.kind == "*i64" else each,
    lambda each: _make_integer(each) if each.source == "name" else each,
    lambda each: _replace_named_type(each, "*i32", "*i64"),
    lambda each: _replace_named_type(each, "*bf16", "*i32"),
    lambda each: _replace_named_type(each, "*bf16", "*fp32"),
    lambda each: _replace_named_type(each, "*i32", "*bf16"),
    lambda each: _replace_named_type(each, "*bf16", "*u8"),
    lambda each: _replace_named_type(each, "*bf16", "*fp8e4nv"),
    lambda each: _replace_named_type(each, "i32", "*bf16") if each.name.endswith("_ptr") else each,
)


def _replace_named_type(
    parameter: AssumedParameter, kind: str, replacement: str
) -> AssumedParameter:
    is_guess = parameter.kind == kind and parameter.source == "name"
    return replace(parameter, kind=replacement) if is_guess else parameter


def _make_integer(parameter: AssumedParameter) -> AssumedParameter:
    """Make a parameter with `scale` in its name an integer: it may count the scales' bytes."""
    return replace(parameter, value=64) if isinstance(parameter.value, float) else parameter
