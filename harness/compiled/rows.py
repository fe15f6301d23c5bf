"""Rows of an access: lanes side by side in memory, looked at as one.

Where its first lane is and how many of its lanes are on says whether any lane of a row is outside.
So a tile is checked by as many comparisons as it has rows, and a vector by one. What is needed for
that is what the kernel computes, of each row's first lane alone (and of its last, in which a sum
may have wrapped): the same operations again, with a side of one. A mask is understood where it
leaves the first lanes of a row on: by what stays the same along it, or by comparing the way along
it with an end. All other accesses are looked at lane by lane.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from harness.compiled.building import SGE, SGT, SLE, SLT, Builder
from harness.compiled.vectors import Runs
from harness.kernels import flow
from harness.kernels.graph import Block, Graph, Kind, Operation, Region, Value

_SPREADING = ("tt.splat", "tt.broadcast", "tt.expand_dims")
_LANE_BY_LANE = ("tt.addptr", "tt.bitcast", "tt.ptr_to_int", "tt.int_to_ptr")
_COUNT = "i64"


_Spread = tuple[tuple[Operation, int], ...]


@dataclass(frozen=True, slots=True)
class Row:
    """Of an access: what holds of each of its rows, with a side of one along them."""

    first: Value  # a pointer
    last: Value  # of those that are on
    count: int | Value
    on: Value | None


@dataclass(slots=True)
class _Loop:
    """What a loop hands on besides, of the values that it hands on."""

    operation: Operation
    more: dict[tuple[Value, int], Value] = field(default_factory=dict)


class Rows:
    """A graph with what its rows need put in, and the rows of its accesses."""

    def __init__(
        self, graph: Graph, code: Builder, runs: Runs, masks: dict[str, int | None]
    ) -> None:
        """`masks`: what an access is, and which of its operands is the mask."""
        self.of: dict[Operation, Row] = {}
        self.sure: set[Value] = set()  # numbers of lanes, none of which wraps
        self._code, self._masks, self._runs = code, masks, runs
        self._loops: dict[Value, _Loop] = {}  # by what they hand on
        self._makers = flow.makers(graph)
        self._known: ChainMap[tuple[Value, int], Value] = ChainMap()
        self.graph = replace(graph, body=self._region(graph.body))

    # The walk

    def _region(self, region: Region) -> Region:
        return Region(tuple(map(self._block, region.blocks)))

    def _block(self, block: Block) -> Block:
        outer, self._known = self._known, self._known.new_child()
        with self._code.at([]) as operations:
            for operation in block.operations:
                self._code.source = operation.source
                if operation.name == "scf.for":
                    operation = self._loop(operation)
                elif operation.regions:
                    regions = tuple(map(self._region, operation.regions))
                    operation = replace(operation, regions=regions)
                elif operation.name in self._masks:
                    self._access(operation)
                operations.append(operation)
        self._known = outer
        return Block(block.label, block.arguments, tuple(operations))

    def _loop(self, operation: Operation) -> Operation:
        loop = _Loop(operation)
        [body] = operation.regions
        given = operation.operands[3:]
        inside = body.block.arguments[1:]
        self._loops |= dict.fromkeys(inside, loop)
        outer, self._known = self._known, self._known.new_child()
        *before, last = body.block.operations
        body_block = self._block(replace(body.block, operations=tuple(before)))
        handed: list[Value] = []
        with self._code.at([*body_block.operations]) as operations:
            for value, axis in _growing(loop.more):
                place = inside.index(value)
                handed.append(self._first(last.operands[place], axis))
            operations.append(replace(last, operands=(*last.operands, *handed)))
        self._known = outer
        begun = tuple(self._first(given[inside.index(value)], axis) for value, axis in loop.more)
        made = tuple(self._code.value(value.kind) for value in loop.more.values())
        arguments = (*body_block.arguments, *loop.more.values())
        whole = Block(body_block.label, arguments, tuple(operations))
        return replace(
            operation,
            operands=(*operation.operands, *begun),
            results=(*operation.results, *made),
            regions=(Region((whole,)),),
        )

    def _access(self, operation: Operation) -> None:
        pointer, place = operation.operands[0], self._masks[operation.name]
        axis = self._runs.axis(pointer)
        if axis is None or not self._can(pointer, axis):
            return
        mask = None
        if place is not None and len(operation.operands) > place:
            mask = operation.operands[place]
        if mask is not None and not self._understood(mask, axis):
            return
        code, side = self._code, pointer.kind.shape[axis]
        on, count = self._mask(mask, axis) if mask is not None else (None, None)
        kind = _row(Kind("i32", pointer.kind.shape), axis)
        if count is None:
            lane = code.constant(side - 1, kind)
        else:
            wide = kind.of(_COUNT)
            count = code.binary("minsi", count, code.constant(side, wide))
            some = code.compare(SGT, count, code.constant(0, wide))
            on = some if on is None else code.binary("andi", some, on)
            lane = code.binary("subi", count, code.constant(1, wide))
            lane = code.binary("maxsi", lane, code.constant(0, wide))
            lane = self._surely(code.narrowed(lane, "i32"))
        first = self._first(pointer, axis)
        last = self._last(pointer, axis, lane)
        self.of[operation] = Row(first, last, side if count is None else count, on)

    # Masks

    def _understood(self, mask: Value, axis: int) -> bool:
        if self._runs.is_still(mask, axis):
            return self._can(mask, axis)
        maker = self._makers.get(mask)
        if maker is None:
            return False
        if maker.name == "arith.andi":
            return all(self._understood(part, axis) for part in maker.operands)
        if maker.name in _SPREADING:
            inner = _below(maker, axis)
            return inner is not None and self._understood(maker.operands[0], inner)
        if maker.name != "arith.cmpi" or (compared := _compared(maker)) is None:
            return False
        way, end, _ = compared
        return (
            self._runs.axis(way) == axis
            and self._runs.is_still(end, axis)
            and self._can(way, axis)
            and self._can(end, axis)
        )

    def _mask(self, mask: Value, axis: int) -> tuple[Value | None, Value | None]:
        """What switches rows on, and how many of a row's lanes: any number, or None for all."""
        if self._runs.is_still(mask, axis):
            return self._first(mask, axis), None
        maker, code = self._makers[mask], self._code
        if maker.name == "arith.andi":
            left, right = (self._mask(part, axis) for part in maker.operands)
            both = [
                code.binary(name, one, other) if one and other else one or other
                for name, one, other in zip(("andi", "minsi"), left, right, strict=True)
            ]
            return both[0], both[1]
        if maker.name in _SPREADING:
            inner = _below(maker, axis)
            assert inner is not None
            parts = self._mask(maker.operands[0], inner)
            on, count = (part and self._spread(maker, axis, part) for part in parts)
            return on, count
        compared = _compared(maker)
        assert compared is not None
        *both_ways, more = compared
        way, end = (self._wide(self._first(value, axis)) for value in both_ways)
        count = code.binary("subi", end, way)
        if more:
            count = code.binary("addi", count, code.constant(more, count.kind))
        return None, count

    def _wide(self, value: Value) -> Value:
        if value.kind.element == _COUNT:
            return value
        return self._code.extended(value, _COUNT, signed=True)

    # Values of one lane along an axis

    def _can(self, value: Value, axis: int, seen: frozenset[Value] = frozenset()) -> bool:
        if value in seen:
            return True
        if value in self._loops:
            operation = self._loops[value].operation
            body = operation.regions[0].block
            place = body.arguments.index(value) - 1
            ways = operation.operands[3 + place], body.operations[-1].operands[place]
            return all(self._can(way, axis, seen | {value}) for way in ways)
        maker = self._makers.get(value)
        if maker is None:
            return False
        if _is_row(value, axis) or maker.name in ("tt.make_range", "arith.constant"):
            return "[" not in maker.attributes.get("value", "")
        if maker.name in _SPREADING:
            inner = _below(maker, axis)
            return inner is None or self._can(maker.operands[0], inner, seen)
        if not _is_lane_by_lane(maker):
            return False
        return all(self._can(one, axis, seen) for one in maker.operands if one.kind.shape)

    def _first(self, value: Value, axis: int) -> Value:
        if (value, axis) not in self._known:
            self._known[value, axis] = self._made(value, axis)
        return self._known[value, axis]

    def _made(self, value: Value, axis: int) -> Value:
        code = self._code
        if _is_row(value, axis):
            return value
        if value in self._loops:
            more = self._loops[value].more
            if (value, axis) not in more:
                more[value, axis] = code.value(_row(value.kind, axis))
            return more[value, axis]
        maker, kind = self._makers[value], _row(value.kind, axis)
        if maker.name == "tt.make_range":
            return code.constant(maker.number("start"), kind)
        if maker.name == "arith.constant":
            return code.emit(maker.name, (), kind, value=_constant(maker, kind))
        if maker.name in _SPREADING:
            inner, below = _below(maker, axis), maker.operands[0]
            return self._spread(maker, axis, below if inner is None else self._first(below, inner))
        operands = [self._first(one, axis) if one.kind.shape else one for one in maker.operands]
        return code.again(maker, operands, kind)

    def _last(self, value: Value, axis: int, lane: Value, spread: _Spread = ()) -> Value:
        """At that lane: what is added to the way along the axis may wrap before it.

        `spread`: what makes the access's shape of the value's, each with its own axis.
        """
        code, maker = self._code, self._makers.get(value)
        moves = not self._runs.is_still(value, axis)
        if moves and maker is not None and _is_lane_by_lane(maker):
            operands = [
                self._last(one, axis, lane, spread) if one.kind.shape else one
                for one in maker.operands
            ]
            kind = lane.kind.of(value.kind.element)
            return code.again(maker, operands, kind)
        if moves and maker is not None and maker.name in _SPREADING:
            inner = _below(maker, axis)
            if inner is not None:
                return self._last(maker.operands[0], inner, lane, ((maker, axis), *spread))
        first = self._first(value, axis)
        for one, its in spread:
            first = self._spread(one, its, first)
        if not moves:
            return first
        if value.kind.is_pointer:
            return code.emit("tt.addptr", (first, lane), first.kind)
        bits = value.kind.bits
        if bits > 32:
            lane = code.extended(lane, value.kind.element, signed=True)
        elif bits < 32:
            lane = self._surely(code.narrowed(lane, value.kind.element))
        return self._surely(code.binary("addi", first, lane))

    def _surely(self, value: Value) -> Value:
        self.sure.add(value)
        return value

    def _spread(self, maker: Operation, axis: int, value: Value) -> Value:
        """As `maker` would, with a side of one along the axis."""
        kind = _row(maker.result.kind, axis).of(value.kind.element)
        if value.kind == kind:
            return value
        if not value.kind.shape:
            return self._code.splat(value, kind.shape)
        return self._code.again(maker, (value,), kind)


def _growing(more: dict[tuple[Value, int], Value]) -> Iterator[tuple[Value, int]]:
    """Its keys, those too that come meanwhile."""
    done = 0
    while done < len(more):
        yield list(more)[done]
        done += 1


def _row(kind: Kind, axis: int) -> Kind:
    """A row's: a vector has one, and that is no tensor."""
    if len(kind.shape) == 1:
        return Kind(kind.element)
    return Kind(kind.element, (*kind.shape[:axis], 1, *kind.shape[axis + 1 :]))


def _is_row(value: Value, axis: int) -> bool:
    return len(value.kind.shape) > 1 and value.kind.shape[axis] == 1


def _below(maker: Operation, axis: int) -> int | None:
    """The axis of what is spread, if it has one."""
    [given] = maker.operands
    if maker.name == "tt.expand_dims":
        new = maker.number("axis")
        return None if new == axis else axis - (new < axis)
    return axis if given.kind.shape and given.kind.shape[axis] > 1 else None


def _is_lane_by_lane(maker: Operation) -> bool:
    if maker.name == "arith.constant":
        return False
    return maker.name.startswith("arith.") or maker.name in _LANE_BY_LANE


def _compared(maker: Operation) -> tuple[Value, Value, int] | None:
    """Of a comparison: the way, its end, and one more where the end is included."""
    predicate, (left, right) = maker.number("predicate"), maker.operands
    if predicate in (SLT, SLE):
        return left, right, int(predicate == SLE)
    if predicate in (SGT, SGE):
        return right, left, int(predicate == SGE)
    return None


def _constant(maker: Operation, kind: Kind) -> str:
    text = maker.attributes["value"].removeprefix("dense<").partition(">")[0]
    if kind.shape:
        return f"dense<{text}> : tensor<{'x'.join(map(str, kind.shape))}x{kind.element}>"
    return text if text in ("true", "false") else f"{text} : {kind.element}"
