"""Constants that a kernel only computes with: one program serves all their values.

Kernels are given widths and strides as constants, and a suite draws them: nearly each example would
be compiled anew. So Triton's front end is given, for an integer, one that writes down what is asked
of it. A comparison is a question with an answer; whoever takes the number itself (a shape, a name,
a loop that is unrolled) has asked whether it is that one. Where it is put into the IR there is a
parameter in its place. All calls for which these questions have the same answers have the same IR,
and each hands over its own numbers when it runs.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from harness.core.cache import get_or_compute, save_cached
from harness.kernels.ir.graph import (
    IRBlock,
    IROperation,
    IRRegion,
    IRValue,
    KernelGraph,
    walk_operations,
)
from harness.kernels.ir.operations import SPREADING_OPERATIONS
from harness.kernels.triton import frontend, mlir_parser
from harness.kernels.triton.frontend import BoundCall, CallBinder, RuntimeArgument
from harness.kernels.triton.symbolic_int import SymbolicInt

SymbolicParameter = tuple[str, str]  # how it comes about from the constants, and its type
_SYMBOLIC = "loose"
_CONSTANT_PATTERN = re.compile(r"v\[\d+\]")
_CONCRETE_PATTERN = re.compile(rf"{_CONSTANT_PATTERN.pattern} == \d+")
_SUM_OPERATIONS = frozenset(("arith.addi", "arith.subi"))
_FOLDABLE_WITH = {
    "arith.addi": _SUM_OPERATIONS,
    "arith.subi": _SUM_OPERATIONS,
    "arith.muli": frozenset(("arith.muli",)),
}
_VALUE_PRESERVING = SPREADING_OPERATIONS | {"arith.extsi", "arith.extui", "arith.trunci"}
_SMALLEST_SYMBOLIC = 2  # 0 and 1 are cases of their own, to whoever optimises


@dataclass(frozen=True, slots=True)
class Specialization:
    """What some calls' constants decide alike, and what is made of them."""

    conditions: dict[str, bool]
    symbolic_parameters: tuple[SymbolicParameter, ...]  # what the IR takes as parameters
    traced_values: dict[int, int]  # of loose constants, in the call that this was learnt from

    def matches(self, values: dict[int, int]) -> bool:
        with contextlib.suppress(ArithmeticError, ValueError):
            return _evaluate_expressions(tuple(self.conditions), values) == tuple(
                self.conditions.values()
            )
        return False

    def evaluate_arguments(self, values: dict[int, int]) -> tuple[RuntimeArgument, ...]:
        numbers = _evaluate_expressions(tuple(text for text, _ in self.symbolic_parameters), values)
        return tuple(
            RuntimeArgument(text, kind, number)
            for (text, kind), number in zip(self.symbolic_parameters, numbers, strict=True)
        )

    def covers_conditions(self, conditions: dict[str, bool]) -> bool:
        """Whether this is all that was asked elsewhere, too."""
        return _drop_implied_conditions(conditions).items() <= self.conditions.items()


def specialize_call(kernel: Any, binder: CallBinder, bound: BoundCall) -> BoundCall:
    """The call as all those are that it shares its IR with, and its own numbers for that."""
    values = _find_symbolic_candidates(bound)
    if not values:
        return bound
    kinds = tuple(
        _SYMBOLIC if place in values else constant for place, constant in enumerate(bound.constants)
    )
    key = frontend.compute_cache_key(kernel, replace(bound, constants=kinds))
    way = _find_matching_specialization(binder.specializations.get(key, ()), values)
    if way is None:
        ways = get_or_compute("ways", key, list[Specialization])
        way = _find_matching_specialization(ways, values)
        if way is None:
            way, graph = _trace_specialization(kernel, bound)
            ways.append(way)
            save_cached("ways", key, ways)
            save_cached(
                "graphs",
                frontend.compute_cache_key(kernel, _to_shared_call(bound, kinds, way)),
                graph,
            )
        binder.specializations[key] = ways
    return replace(
        _to_shared_call(bound, kinds, way), symbolic_arguments=way.evaluate_arguments(values)
    )


def build_graph(kernel: Any, bound: BoundCall) -> KernelGraph:
    """What Triton makes of a call; of one that is shared, with parameters for its numbers."""
    if bound.specialization is not None:
        return _trace_specialization(kernel, bound)[1]
    return mlir_parser.parse_mlir(frontend.compile_to_mlir(kernel, bound))


def _to_shared_call(
    bound: BoundCall, constants: tuple[Any, ...], specialization: Specialization
) -> BoundCall:
    constants = (*constants, str(sorted(specialization.conditions.items())))
    return replace(
        bound, constants=constants, key=(bound.types, constants), specialization=specialization
    )


def _find_symbolic_candidates(bound: BoundCall) -> dict[int, int]:
    """The constants that may be numbers, by their places."""
    return {
        place: value
        for place, (value, kind) in enumerate(zip(bound.values.values(), bound.types, strict=True))
        if kind == "constexpr" and type(value) is int and value >= _SMALLEST_SYMBOLIC
    }


def _find_matching_specialization(
    specializations: Iterable[Specialization], values: dict[int, int]
) -> Specialization | None:
    return next((way for way in specializations if way.matches(values)), None)


def _trace_specialization(
    kernel: Any, bound: BoundCall, concrete_constants: frozenset[int] = frozenset()
) -> tuple[Specialization, KernelGraph]:
    able = _find_symbolic_candidates(bound)
    asked = {f"v[{place}] == {able[place]}": True for place in concrete_constants}
    values = {place: value for place, value in able.items() if place not in concrete_constants}
    loose = make_symbolic_ints(values, asked)
    constants = {
        name: loose.get(place, value) for place, (name, value) in enumerate(bound.values.items())
    }
    try:
        text = frontend.compile_to_mlir(kernel, replace(bound, values=constants))
        graph, numbers = _expose_parameters(mlir_parser.parse_mlir(text))
    except Exception:
        if not values:
            raise
        return _trace_specialization(
            kernel, bound, frozenset(able)
        )  # Triton cannot do with such numbers
    combined = _find_folded_constants(
        graph, dict(zip(graph.parameters[-len(numbers) :], numbers, strict=False))
    )
    if combined:
        return _trace_specialization(kernel, bound, concrete_constants | combined)
    return Specialization(_drop_implied_conditions(asked), numbers, values), graph


def make_symbolic_ints(
    values: dict[int, int], conditions: dict[str, bool]
) -> dict[int, SymbolicInt]:
    """What the front end is given in the place of these constants."""
    return {place: SymbolicInt(f"v[{place}]", value, conditions) for place, value in values.items()}


def _drop_implied_conditions(conditions: dict[str, bool]) -> dict[str, bool]:
    """Without what follows for constants that were taken as they are."""
    taken = {text.partition(" ")[0] for text in conditions if _CONCRETE_PATTERN.fullmatch(text)}
    return {
        text: answer
        for text, answer in conditions.items()
        if _CONCRETE_PATTERN.fullmatch(text)
        or not taken.issuperset(_CONSTANT_PATTERN.findall(text))
    }


def _expose_parameters(graph: KernelGraph) -> tuple[KernelGraph, tuple[SymbolicParameter, ...]]:
    """The graph with a parameter for each number that was put into it."""
    if any(
        frontend.get_symbolic_expression(one)
        for body in graph.functions.values()
        for one in walk_operations(body)
    ):
        raise ValueError("a number in a function that is not inlined")
    numbers = [
        one.result for one in walk_operations(graph.body) if frontend.get_symbolic_expression(one)
    ]
    told = tuple(
        (text, one.result.type.element)
        for one in walk_operations(graph.body)
        if (text := frontend.get_symbolic_expression(one))
    )
    body = _map_operations(
        graph.body, lambda one: None if frontend.get_symbolic_expression(one) else one
    )
    entry = replace(body.block, arguments=(*body.block.arguments, *numbers))
    return replace(graph, body=IRRegion((entry, *body.blocks[1:]))), told


def _find_folded_constants(
    graph: KernelGraph, parameters: dict[IRValue, SymbolicParameter]
) -> frozenset[int]:
    """The constants of numbers that would be folded with others, which leaves one sum for two.

    What wraps within would be told where nothing wraps. Of 64 bits nothing does.
    """
    makers = {one.result: one for one in walk_operations(graph.body) if len(one.results) == 1}

    def constant(value: IRValue) -> list[str] | None:
        while value in makers and makers[value].name in _VALUE_PRESERVING:
            value = makers[value].operands[0]
        if value in parameters:
            return _CONSTANT_PATTERN.findall(parameters[value][0])
        return [] if value in makers and makers[value].name == "arith.constant" else None

    found: list[str] = []
    for one in makers.values():
        if one.name in _FOLDABLE_WITH and one.result.type.bits < 64:
            sides = [(constant(side), makers.get(side)) for side in one.operands]
            texts = [text for text, _ in sides if text is not None]
            inner = [
                text
                for text, maker in sides
                if text is None and maker is not None and maker.name in _FOLDABLE_WITH[one.name]
                for text in map(constant, maker.operands)
                if text is not None
            ]
            if texts and len(texts) + len(inner) > 1:
                found += [*itertools.chain.from_iterable([*texts, *inner])]
    return frozenset(int(text[2:-1]) for text in found)


def substitute_parameters(
    graph: KernelGraph, parameter_values: dict[SymbolicParameter, IRValue]
) -> KernelGraph:
    """The graph with these values where numbers were put into it."""

    def value_of(one: IROperation) -> IROperation:
        text = frontend.get_symbolic_expression(one)
        if not text:
            return one
        value = parameter_values[text, one.result.type.element]
        return replace(one, name="arith.ori", operands=(value, value), attributes={})

    return replace(graph, body=_map_operations(graph.body, value_of))


def _map_operations(
    region: IRRegion, change: Callable[[IROperation], IROperation | None]
) -> IRRegion:
    def changed(block: IRBlock) -> IRBlock:
        kept = filter(None, map(change, block.operations))
        return replace(
            block,
            operations=tuple(
                replace(one, regions=tuple(_map_operations(inner, change) for inner in one.regions))
                if one.regions
                else one
                for one in kept
            ),
        )

    return IRRegion(tuple(map(changed, region.blocks)))


def _evaluate_expressions(expressions: tuple[str, ...], values: dict[int, int]) -> tuple[Any, ...]:
    return eval(_compile_expressions(expressions), {"v": values})  # type: ignore[no-any-return]


@functools.cache
def _compile_expressions(expressions: tuple[str, ...]) -> Any:
    return compile(f"({''.join(f'{text}, ' for text in expressions)})", "<asked>", "eval")
