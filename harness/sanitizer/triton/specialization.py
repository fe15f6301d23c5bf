"""One IR for many constants: those that a kernel only computes with become parameters.

Triton compiles a kernel again for each value of a constexpr, and a suite that draws strides would
compile at every example. So the front end gets a symbolic int for each integer constant; it records
the conditions under which the trace took its branches (`symbolic_int`). Invariant: for all
constants that meet the conditions, the IR with these constants as arguments does what their own IR
does, and reports the same violations.

Example: `by_rows(..., stride=9, width=5, BLOCK=8)` uses BLOCK in a shape, which fixes it
(`v[4] == 8`), and multiplies by stride and width. The IR takes `v[2]` and `v[3]` as parameters;
the call with stride=11 and width=2 uses it with 11 and 2.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from harness.core.cache import get_or_compute, save_cached
from harness.sanitizer.ir.graph import (
    IROperation,
    IRRegion,
    IRValue,
    KernelGraph,
    map_operations,
    walk_operations,
)
from harness.sanitizer.ir.operations import (
    RESIZING_OPERATIONS,
    SPREADING_OPERATIONS,
    SUM_OPERATIONS,
)
from harness.sanitizer.triton import frontend, mlir_parser
from harness.sanitizer.triton.frontend import BoundCall, CallBinder, RuntimeArgument
from harness.sanitizer.triton.symbolic_int import SymbolicInt

SymbolicParameter = tuple[str, str]  # an expression of the constants, and its type
_SYMBOLIC = "symbolic"  # in the place of a constant, in the key of all specializations
_CONSTANT_PATTERN = re.compile(r"v\[\d+\]")
_CONCRETE_PATTERN = re.compile(rf"{_CONSTANT_PATTERN.pattern} == \d+")
_FOLDABLE_WITH = {
    **dict.fromkeys(SUM_OPERATIONS, SUM_OPERATIONS),
    "arith.muli": frozenset(("arith.muli",)),
}
_VALUE_PRESERVING = SPREADING_OPERATIONS | RESIZING_OPERATIONS
_SMALLEST_SYMBOLIC = 2  # the front end treats 0 and 1 apart


class HiddenSymbolicInt(Exception):
    """A symbolic int that cannot become a parameter of the graph."""


@dataclass(frozen=True, slots=True)
class Specialization:
    """One IR for all constants that meet some conditions, with its parameters for them."""

    conditions: dict[str, bool]
    symbolic_parameters: tuple[SymbolicParameter, ...]  # parameters of the IR
    traced_values: dict[int, int]  # the constants of the call that was traced

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
        """Return whether conditions recorded elsewhere are among these."""
        return _drop_implied_conditions(conditions).items() <= self.conditions.items()


def specialize_call(kernel: Any, binder: CallBinder, bound: BoundCall) -> BoundCall:
    """Return the call in a form whose IR other constants share, with its own as arguments."""
    values = _find_symbolic_candidates(bound)
    if not values:
        return bound
    kinds = tuple(
        _SYMBOLIC if place in values else constant for place, constant in enumerate(bound.constants)
    )
    key = frontend.compute_cache_key(kernel, replace(bound, constants=kinds))
    specialization = _find_matching_specialization(binder.specializations.get(key, ()), values)
    if specialization is None:
        known_specializations = get_or_compute("specializations", key, list[Specialization])
        specialization = _find_matching_specialization(known_specializations, values)
        if specialization is None:
            specialization, graph = _trace_specialization(kernel, bound)
            known_specializations.append(specialization)
            save_cached("specializations", key, known_specializations)
            save_cached(
                "graphs",
                frontend.compute_cache_key(kernel, _to_shared_call(bound, kinds, specialization)),
                graph,
            )
        binder.specializations[key] = known_specializations
    return replace(
        _to_shared_call(bound, kinds, specialization),
        symbolic_arguments=specialization.evaluate_arguments(values),
    )


def build_graph(kernel: Any, bound: BoundCall) -> KernelGraph:
    """Build the graph of a call; if it is specialized, with parameters for symbolic constants."""
    if bound.specialization is not None:
        return _trace_specialization(kernel, bound)[1]
    return mlir_parser.parse_mlir(frontend.compile_to_mlir(kernel, bound))


def _to_shared_call(
    bound: BoundCall, constants: tuple[Any, ...], specialization: Specialization
) -> BoundCall:
    constants = (*constants, str(sorted(specialization.conditions.items())))
    return replace(
        bound,
        constants=constants,
        key=(bound.types, constants, *bound.options),
        specialization=specialization,
    )


def _find_symbolic_candidates(bound: BoundCall) -> dict[int, int]:
    """Find the constants that may become symbolic ints, by position."""
    return {
        place: value
        for place, (value, kind) in enumerate(zip(bound.values.values(), bound.types, strict=True))
        if kind == "constexpr" and type(value) is int and value >= _SMALLEST_SYMBOLIC
    }


def _find_matching_specialization(
    specializations: Iterable[Specialization], values: dict[int, int]
) -> Specialization | None:
    return next(
        (specialization for specialization in specializations if specialization.matches(values)),
        None,
    )


def _trace_specialization(
    kernel: Any, bound: BoundCall, concrete_constants: frozenset[int] = frozenset()
) -> tuple[Specialization, KernelGraph]:
    candidates = _find_symbolic_candidates(bound)
    conditions = {f"v[{place}] == {candidates[place]}": True for place in concrete_constants}
    values = {
        place: value for place, value in candidates.items() if place not in concrete_constants
    }
    symbolic_ints = make_symbolic_ints(values, conditions)
    constants = {
        name: symbolic_ints.get(place, value)
        for place, (name, value) in enumerate(bound.values.items())
    }
    try:
        text = frontend.compile_to_mlir(kernel, replace(bound, values=constants))
    except Exception:
        # Triton runs the kernel's own Python, so a symbolic int can raise anything in it. What is
        # wrong with the kernel itself is raised again when it is compiled for its constants.
        if not values:
            raise
        return _trace_specialization(kernel, bound, frozenset(candidates))
    try:
        graph, numbers = _expose_parameters(mlir_parser.parse_mlir(text))
    except HiddenSymbolicInt:
        return _trace_specialization(kernel, bound, frozenset(candidates))
    folded = _find_folded_constants(
        graph, dict(zip(graph.parameters[-len(numbers) :], numbers, strict=False))
    )
    if folded:
        return _trace_specialization(kernel, bound, concrete_constants | folded)
    return Specialization(_drop_implied_conditions(conditions), numbers, values), graph


def make_symbolic_ints(
    values: dict[int, int], conditions: dict[str, bool]
) -> dict[int, SymbolicInt]:
    """Make the symbolic ints that the front end gets in place of these constants."""
    return {place: SymbolicInt(f"v[{place}]", value, conditions) for place, value in values.items()}


def _drop_implied_conditions(conditions: dict[str, bool]) -> dict[str, bool]:
    """Drop conditions on constants that are fixed to one value: they follow from it."""
    concrete = {text.partition(" ")[0] for text in conditions if _CONCRETE_PATTERN.fullmatch(text)}
    return {
        text: answer
        for text, answer in conditions.items()
        if _CONCRETE_PATTERN.fullmatch(text)
        or not concrete.issuperset(_CONSTANT_PATTERN.findall(text))
    }


def _expose_parameters(graph: KernelGraph) -> tuple[KernelGraph, tuple[SymbolicParameter, ...]]:
    """Add a parameter to the graph for each operation that stands for a symbolic int."""
    if any(
        frontend.get_symbolic_expression(operation)
        for body in graph.functions.values()
        for operation in walk_operations(body)
    ):
        raise HiddenSymbolicInt("a symbolic int in a function that is not inlined")
    parameters: dict[IRValue, SymbolicParameter] = {}

    def drop_symbolic(operation: IROperation) -> list[IROperation]:
        text = frontend.get_symbolic_expression(operation)
        if text:
            parameters[operation.result] = text, operation.result.type.element
        return [] if text else [operation]

    body = map_operations(graph.body, drop_symbolic)
    entry = replace(body.block, arguments=(*body.block.arguments, *parameters))
    return replace(graph, body=IRRegion((entry, *body.blocks[1:]))), tuple(parameters.values())


def _find_folded_constants(
    graph: KernelGraph, parameters: dict[IRValue, SymbolicParameter]
) -> frozenset[int]:
    """Find the symbolic constants that Triton's optimizer would fold with another constant.

    Example: in `row + 5 - 3` it folds the constants into `row + 2`. With symbolic ints both sums
    stay, and the first one could overflow where the compiled kernel does not. Sums of 64 bits are
    left: none of them overflows.
    """
    definitions = {
        operation.result: operation
        for operation in walk_operations(graph.body)
        if len(operation.results) == 1
    }

    def list_constants(value: IRValue) -> list[str] | None:
        while value in definitions and definitions[value].name in _VALUE_PRESERVING:
            value = definitions[value].operands[0]
        if value in parameters:
            return _CONSTANT_PATTERN.findall(parameters[value][0])
        return [] if value in definitions and definitions[value].name == "arith.constant" else None

    constant_names: list[str] = []
    for operation in definitions.values():
        if operation.name in _FOLDABLE_WITH and operation.result.type.bits < 64:
            sides = [(list_constants(side), definitions.get(side)) for side in operation.operands]
            texts = [text for text, _ in sides if text is not None]
            inner = [
                text
                for text, definition in sides
                if text is None
                and definition is not None
                and definition.name in _FOLDABLE_WITH[operation.name]
                for text in map(list_constants, definition.operands)
                if text is not None
            ]
            if texts and len(texts) + len(inner) > 1:
                constant_names += [*itertools.chain.from_iterable([*texts, *inner])]
    return frozenset(int(text[2:-1]) for text in constant_names)


def substitute_parameters(
    graph: KernelGraph, parameter_values: dict[SymbolicParameter, IRValue]
) -> KernelGraph:
    """Substitute values for the graph's operations that stand for symbolic ints."""

    def substitute(operation: IROperation) -> list[IROperation]:
        text = frontend.get_symbolic_expression(operation)
        if not text:
            return [operation]
        value = parameter_values[text, operation.result.type.element]
        return [replace(operation, name="arith.ori", operands=(value, value), attributes={})]

    return replace(graph, body=map_operations(graph.body, substitute))


def _evaluate_expressions(expressions: tuple[str, ...], values: dict[int, int]) -> tuple[Any, ...]:
    return eval(_compile_expressions(expressions), {"v": values})  # type: ignore[no-any-return]


@functools.cache
def _compile_expressions(expressions: tuple[str, ...]) -> Any:
    return compile(f"({''.join(f'{text}, ' for text in expressions)})", "<conditions>", "eval")
