"""From parameters to the graph of a kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from harness.audit.arguments import Parameter
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
    for narrow in (False, True):
        for pointee in ("*bf16", "*i32"):
            other = [_otherwise(one, narrow, pointee) for one in made]
            if other != made:
                yield other


def _otherwise(one: Parameter, narrow: bool, pointee: str) -> Parameter:
    if narrow and one.kind == "i64":
        return replace(one, kind="i32")
    if one.kind == "*bf16" and one.source == "name":
        return replace(one, kind=pointee)
    return one
