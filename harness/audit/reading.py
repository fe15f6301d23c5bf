"""From parameters to the graph of a kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from harness.audit.arguments import UNUSED, Parameter
from harness.kernels import Graph, frontend, parsing
from harness.kernels.frontend import Bound
from harness.kernels.kept import kept


def read(kernel: Any, parameters: list[Parameter]) -> Graph:
    """The graph of a kernel read with these; kept on disk."""
    bound = bound_of(parameters)
    key = frontend.key_of(kernel, bound)
    return kept("graphs", key, lambda: parsing.parsed(frontend.generic_text(kernel, bound)))


def bound_of(parameters: list[Parameter]) -> Bound:
    values = {one.name: one.value for one in parameters}
    kinds = tuple(one.kind for one in parameters)
    constants = tuple(one.value if one.kind == "constexpr" else None for one in parameters)
    return Bound(values, kinds, constants, (kinds, constants))


def attempts(made: list[Parameter]) -> Iterator[list[Parameter]]:
    """The same with what is only a guess made otherwise, one guess after the other."""
    yield made
    before = [made]
    small = [_small(one) for one in made]
    for guess in _GUESSES:
        for start in (made, small, before[-1]):
            other = [guess(one) for one in start]
            if other not in before:
                before.append(other)
                yield other


def _small(one: Parameter) -> Parameter:
    guessed = one.kind == "constexpr" and one.source in ("name", "host", "default")
    number = isinstance(one.value, int) and not isinstance(one.value, bool)
    return replace(one, value=32) if guessed and number and one.value > 32 else one


# Each tried alone, with smaller constants, and together with those before it.
_GUESSES: tuple[Callable[[Parameter], Parameter], ...] = (
    lambda one: replace(one, kind="fp32") if one.source == UNUSED else one,
    _small,
    lambda one: replace(one, kind="*i1") if one.kind == "*i8" and one.source == "name" else one,
    lambda one: replace(one, kind="i32") if one.kind == "i64" else one,
    lambda one: replace(one, kind="*i32") if one.kind == "*i64" else one,
    lambda one: _whole(one) if one.source == "name" else one,
    lambda one: _named(one, "*i32", "*i64"),
    lambda one: _named(one, "*bf16", "*i32"),
    lambda one: _named(one, "*bf16", "*fp32"),
    lambda one: _named(one, "*i32", "*bf16"),
    lambda one: _named(one, "*bf16", "*u8"),
    lambda one: _named(one, "*bf16", "*fp8e4nv"),
    lambda one: _named(one, "i32", "*bf16") if one.name.endswith("_ptr") else one,
)


def _named(one: Parameter, kind: str, other: str) -> Parameter:
    return replace(one, kind=other) if one.kind == kind and one.source == "name" else one


def _whole(one: Parameter) -> Parameter:
    """A scale may be how many bytes there are of scales."""
    return replace(one, value=64) if isinstance(one.value, float) else one
