"""From parameters to the graph of a kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from harness.core.cache import get_or_compute
from harness.kernels.ir.graph import KernelGraph
from harness.kernels.triton import frontend, mlir_parser
from harness.kernels.triton.frontend import BoundCall
from harness.runs.audit.parameter_inference import SOURCE_UNUSED, AssumedParameter


def read_graph(kernel: Any, parameters: list[AssumedParameter]) -> KernelGraph:
    """The graph of a kernel read with these; kept on disk."""
    bound = make_bound_call(parameters)
    key = frontend.compute_cache_key(kernel, bound)
    return get_or_compute(
        "graphs", key, lambda: mlir_parser.parse_mlir(frontend.compile_to_mlir(kernel, bound))
    )


def make_bound_call(parameters: list[AssumedParameter]) -> BoundCall:
    values = {one.name: one.value for one in parameters}
    kinds = tuple(one.kind for one in parameters)
    constants = tuple(one.value if one.kind == "constexpr" else None for one in parameters)
    return BoundCall(values, kinds, constants, (kinds, constants))


def iterate_guesses(assumed_parameters: list[AssumedParameter]) -> Iterator[list[AssumedParameter]]:
    """The same with what is only a guess made otherwise, one guess after the other."""
    yield assumed_parameters
    before = [assumed_parameters]
    small = [_shrink_constant(one) for one in assumed_parameters]
    for guess in _GUESSES:
        for start in (assumed_parameters, small, before[-1]):
            other = [guess(one) for one in start]
            if other not in before:
                before.append(other)
                yield other


def _shrink_constant(parameter: AssumedParameter) -> AssumedParameter:
    guessed = parameter.kind == "constexpr" and parameter.source in ("name", "host", "default")
    number = isinstance(parameter.value, int) and not isinstance(parameter.value, bool)
    return (
        replace(parameter, value=32) if guessed and number and parameter.value > 32 else parameter
    )


# Each tried alone, with smaller constants, and together with those before it.
_GUESSES: tuple[Callable[[AssumedParameter], AssumedParameter], ...] = (
    lambda one: replace(one, kind="fp32") if one.source == SOURCE_UNUSED else one,
    _shrink_constant,
    lambda one: replace(one, kind="*i1") if one.kind == "*i8" and one.source == "name" else one,
    lambda one: replace(one, kind="i32") if one.kind == "i64" else one,
    lambda one: replace(one, kind="*i32") if one.kind == "*i64" else one,
    lambda one: _make_integer(one) if one.source == "name" else one,
    lambda one: _replace_named_type(one, "*i32", "*i64"),
    lambda one: _replace_named_type(one, "*bf16", "*i32"),
    lambda one: _replace_named_type(one, "*bf16", "*fp32"),
    lambda one: _replace_named_type(one, "*i32", "*bf16"),
    lambda one: _replace_named_type(one, "*bf16", "*u8"),
    lambda one: _replace_named_type(one, "*bf16", "*fp8e4nv"),
    lambda one: _replace_named_type(one, "i32", "*bf16") if one.name.endswith("_ptr") else one,
)


def _replace_named_type(
    parameter: AssumedParameter, kind: str, replacement: str
) -> AssumedParameter:
    return (
        replace(parameter, kind=replacement)
        if parameter.kind == kind and parameter.source == "name"
        else parameter
    )


def _make_integer(parameter: AssumedParameter) -> AssumedParameter:
    """A scale may be how many bytes there are of scales."""
    return replace(parameter, value=64) if isinstance(parameter.value, float) else parameter
