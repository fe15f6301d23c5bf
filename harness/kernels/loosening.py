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

from harness.kernels import frontend, parsing
from harness.kernels.frontend import Argument, Binder, Bound
from harness.kernels.graph import Block, Graph, Operation, Region, Value, operations
from harness.kernels.kept import keep, kept
from harness.kernels.loose import Loose

Number = tuple[str, str]  # how it comes about from the constants, and its type
_LOOSE = "loose"
_CONSTANT = re.compile(r"v\[\d+\]")
_TAKEN = re.compile(rf"{_CONSTANT.pattern} == \d+")
_SUMS = frozenset(("arith.addi", "arith.subi"))
_WITH = {"arith.addi": _SUMS, "arith.subi": _SUMS, "arith.muli": frozenset(("arith.muli",))}
_PASSED_ON = frozenset(
    ("tt.splat", "tt.broadcast", "tt.expand_dims", "arith.extsi", "arith.extui", "arith.trunci")
)
_LEAST = 2  # 0 and 1 are cases of their own, to whoever optimises


@dataclass(frozen=True, slots=True)
class Way:
    """What some calls' constants decide alike, and what is made of them."""

    asked: dict[str, bool]
    numbers: tuple[Number, ...]  # what the IR takes as parameters
    values: dict[int, int]  # of loose constants, in the call that this was learnt from

    def serves(self, values: dict[int, int]) -> bool:
        with contextlib.suppress(ArithmeticError, ValueError):
            return _evaluated(tuple(self.asked), values) == tuple(self.asked.values())
        return False

    def handed_over(self, values: dict[int, int]) -> tuple[Argument, ...]:
        numbers = _evaluated(tuple(text for text, _ in self.numbers), values)
        return tuple(
            Argument(text, kind, number)
            for (text, kind), number in zip(self.numbers, numbers, strict=True)
        )

    def foresaw(self, asked: dict[str, bool]) -> bool:
        """Whether this is all that was asked elsewhere, too."""
        return _needed(asked).items() <= self.asked.items()


def loosened(kernel: Any, binder: Binder, bound: Bound) -> Bound:
    """The call as all those are that it shares its IR with, and its own numbers for that."""
    values = _able(bound)
    if not values:
        return bound
    kinds = tuple(
        _LOOSE if place in values else constant for place, constant in enumerate(bound.constants)
    )
    key = frontend.key_of(kernel, replace(bound, constants=kinds))
    way = _serving(binder.ways.get(key, ()), values)
    if way is None:
        ways = kept("ways", key, list[Way])
        way = _serving(ways, values)
        if way is None:
            way, graph = _learnt(kernel, bound)
            ways.append(way)
            keep("ways", key, ways)
            keep("graphs", frontend.key_of(kernel, _shared(bound, kinds, way)), graph)
        binder.ways[key] = ways
    return replace(_shared(bound, kinds, way), numbers=way.handed_over(values))


def graph_of(kernel: Any, bound: Bound) -> Graph:
    """What Triton makes of a call; of one that is shared, with parameters for its numbers."""
    if bound.way is not None:
        return _learnt(kernel, bound)[1]
    return parsing.parsed(frontend.generic_text(kernel, bound))


def _shared(bound: Bound, constants: tuple[Any, ...], way: Way) -> Bound:
    constants = (*constants, str(sorted(way.asked.items())))
    return replace(bound, constants=constants, key=(bound.kinds, constants), way=way)


def _able(bound: Bound) -> dict[int, int]:
    """The constants that may be numbers, by their places."""
    return {
        place: value
        for place, (value, kind) in enumerate(zip(bound.values.values(), bound.kinds, strict=True))
        if kind == "constexpr" and type(value) is int and value >= _LEAST
    }


def _serving(ways: Iterable[Way], values: dict[int, int]) -> Way | None:
    return next((way for way in ways if way.serves(values)), None)


def _learnt(kernel: Any, bound: Bound, fixed: frozenset[int] = frozenset()) -> tuple[Way, Graph]:
    able = _able(bound)
    asked = {f"v[{place}] == {able[place]}": True for place in fixed}
    values = {place: value for place, value in able.items() if place not in fixed}
    loose = given(values, asked)
    constants = {
        name: loose.get(place, value) for place, (name, value) in enumerate(bound.values.items())
    }
    try:
        text = frontend.generic_text(kernel, replace(bound, values=constants))
        graph, numbers = _opened(parsing.parsed(text))
    except Exception:
        if not values:
            raise
        return _learnt(kernel, bound, frozenset(able))  # Triton cannot do with such numbers
    combined = _combined(graph, dict(zip(graph.parameters[-len(numbers) :], numbers, strict=False)))
    if combined:
        return _learnt(kernel, bound, fixed | combined)
    return Way(_needed(asked), numbers, values), graph


def given(values: dict[int, int], asked: dict[str, bool]) -> dict[int, Loose]:
    """What the front end is given in the place of these constants."""
    return {place: Loose(f"v[{place}]", value, asked) for place, value in values.items()}


def _needed(asked: dict[str, bool]) -> dict[str, bool]:
    """Without what follows for constants that were taken as they are."""
    taken = {text.partition(" ")[0] for text in asked if _TAKEN.fullmatch(text)}
    return {
        text: answer
        for text, answer in asked.items()
        if _TAKEN.fullmatch(text) or not taken.issuperset(_CONSTANT.findall(text))
    }


def _opened(graph: Graph) -> tuple[Graph, tuple[Number, ...]]:
    """The graph with a parameter for each number that was put into it."""
    if any(
        frontend.number_of(one) for body in graph.functions.values() for one in operations(body)
    ):
        raise ValueError("a number in a function that is not inlined")
    numbers = [one.result for one in operations(graph.body) if frontend.number_of(one)]
    told = tuple(
        (text, one.result.kind.element)
        for one in operations(graph.body)
        if (text := frontend.number_of(one))
    )
    body = _each(graph.body, lambda one: None if frontend.number_of(one) else one)
    entry = replace(body.block, arguments=(*body.block.arguments, *numbers))
    return replace(graph, body=Region((entry, *body.blocks[1:]))), told


def _combined(graph: Graph, numbers: dict[Value, Number]) -> frozenset[int]:
    """The constants of numbers that would be folded with others, which leaves one sum for two.

    What wraps within would be told where nothing wraps. Of 64 bits nothing does.
    """
    makers = {one.result: one for one in operations(graph.body) if len(one.results) == 1}

    def constant(value: Value) -> list[str] | None:
        while value in makers and makers[value].name in _PASSED_ON:
            value = makers[value].operands[0]
        if value in numbers:
            return _CONSTANT.findall(numbers[value][0])
        return [] if value in makers and makers[value].name == "arith.constant" else None

    found: list[str] = []
    for one in makers.values():
        if one.name in _WITH and one.result.kind.bits < 64:
            sides = [(constant(side), makers.get(side)) for side in one.operands]
            texts = [text for text, _ in sides if text is not None]
            inner = [
                text
                for text, maker in sides
                if text is None and maker is not None and maker.name in _WITH[one.name]
                for text in map(constant, maker.operands)
                if text is not None
            ]
            if texts and len(texts) + len(inner) > 1:
                found += [*itertools.chain.from_iterable([*texts, *inner])]
    return frozenset(int(text[2:-1]) for text in found)


def filled(graph: Graph, numbers: dict[Number, Value]) -> Graph:
    """The graph with these values where numbers were put into it."""

    def value_of(one: Operation) -> Operation:
        text = frontend.number_of(one)
        if not text:
            return one
        value = numbers[text, one.result.kind.element]
        return replace(one, name="arith.ori", operands=(value, value), attributes={})

    return replace(graph, body=_each(graph.body, value_of))


def _each(region: Region, change: Callable[[Operation], Operation | None]) -> Region:
    def changed(block: Block) -> Block:
        kept = filter(None, map(change, block.operations))
        return replace(
            block,
            operations=tuple(
                replace(one, regions=tuple(_each(inner, change) for inner in one.regions))
                if one.regions
                else one
                for one in kept
            ),
        )

    return Region(tuple(map(changed, region.blocks)))


def _evaluated(texts: tuple[str, ...], values: dict[int, int]) -> tuple[Any, ...]:
    return eval(_compiled(texts), {"v": values})  # type: ignore[no-any-return]


@functools.cache
def _compiled(texts: tuple[str, ...]) -> Any:
    return compile(f"({''.join(f'{text}, ' for text in texts)})", "<asked>", "eval")
