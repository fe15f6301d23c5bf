"""A graph with checks written into it: bounds and wraps in front of each access.

What is an access, which argument its pointer came from and which integers lead to it is `flow`'s
to say, as for the executor on a CPU. The check's parameters stand before the kernel's own: the
report, the launch's number, and for each pointer how many bytes it may reach. An access outside
of its tensor is told and taken out; its report stands apart from its mask, so that Triton can
pipeline the access as before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.compiled.building import UGE, Builder
from harness.compiled.rows import Rows
from harness.compiled.telling import Teller, Told
from harness.compiled.twins import SYMBOLS, Part, Parts, Twins
from harness.compiled.vectors import Runs
from harness.kernels import flow
from harness.kernels.graph import Block, Graph, Kind, Operation, Region, Source, Value
from harness.native.lanes import Site

OUTSIDE = -(1 << 31)  # the bit of a report's word that is no wrap's
_VECTOR = 16  # bytes that one instruction moves
_WIDE = Kind("i64")
# What each access does, and which of its operands is the mask.
_ACCESSES = {
    "tt.load": ("read", 1),
    "tt.store": ("write", 2),
    "tt.atomic_rmw": ("update", 2),
    "tt.atomic_cas": ("update", None),
}
_REFUSED = ("tt.descriptor_", "tt.experimental_", "tt.make_tensor_descriptor", "ttng.", "ttg.")


class CannotInstrument(Exception):
    """A kernel that runs as it is, and why."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    graph: Graph
    sites: tuple[Site, ...]
    wraps: tuple[Site, ...]
    unchecked: dict[str, int]  # accesses without a check, by the reason


def rewritten(graph: Graph, pointers: int, threads: int, checks: Sequence[str]) -> Rewritten:
    """`pointers`: how many extents there are; `threads`: of a program."""
    return _Rewriting(graph, pointers, threads, checks).rewritten()


class _Rewriting:
    def __init__(self, graph: Graph, pointers: int, threads: int, checks: Sequence[str]) -> None:
        if graph.functions:
            raise CannotInstrument(f"it calls {', '.join(graph.functions)}, which is not inlined")
        for operation in graph.operations():
            if operation.name.startswith(_REFUSED) and not operation.name.endswith("barrier"):
                raise CannotInstrument(f"it uses {operation.name}")
        self._checks = checks
        values = (value for one in graph.operations() for value in (*one.results, *one.operands))
        inner = (value for block in _blocks(graph.body) for value in block.arguments)
        self._code = Builder([*values, *inner])
        self._runs = Runs(graph)
        self._rows = Rows(
            graph, self._code, self._runs, {name: mask for name, (_, mask) in _ACCESSES.items()}
        )
        self._graph = graph = self._rows.graph
        self._origins = flow.origins(graph)
        watched = flow.Addressing({}, frozenset())
        if "wraps" in checks:
            ends = [end for row in self._rows.of.values() for end in (row.first, row.last)]
            watched = flow.addressing(graph, ends)
        suspects = watched.suspects - self._rows.sure
        self._twins = Twins(self._code, replace(watched, suspects=suspects))
        self._sites: list[Site] = []
        self._unchecked: Counter[str] = Counter()
        report, launch, *extents = graph.parameters[: 2 + pointers]
        self._teller = Teller(self._code, report, launch, threads)
        own = [
            place
            for place, parameter in enumerate(graph.parameters)
            if parameter.kind.is_pointer and place >= 2 + pointers
        ]
        if len(own) != pointers:
            raise CannotInstrument(f"{len(own)} pointers and {pointers} extents")
        self._extents = dict(zip(own, extents, strict=True))
        self._bases: dict[int, Value] = {}
        self._ends: dict[int, Value] = {}
        self._limits: dict[tuple[int, int], Value] = {}
        self._entry: list[Operation] = []

    def rewritten(self) -> Rewritten:
        self._enter()
        first, *others = map(self._block, self._graph.body.blocks)
        first = replace(first, operations=(*self._entry, *first.operations))
        blocks = (first, *others)
        return Rewritten(
            replace(self._graph, body=Region(blocks)),
            tuple(self._sites),
            tuple(self._wrap_site(operation) for operation in self._twins.wraps),
            dict(self._unchecked),
        )

    def _wrap_site(self, operation: Operation) -> Site:
        signed = self._twins.signed(operation.result)
        element = operation.result.kind.element
        return Site(SYMBOLS[operation.name], element if signed else f"u{element}", operation.source)

    def _enter(self) -> None:
        """What every check needs, once: where each argument starts, and one byte past its end."""
        code = self._code
        used = {
            origin
            for operation in self._graph.operations()
            if operation.name in _ACCESSES
            and (origin := self._origins[operation.operands[0]]) is not None
        }
        with code.at(self._entry):
            for place in sorted(used):
                pointer = self._graph.parameters[place]
                self._bases[place] = code.emit("tt.ptr_to_int", (pointer,), _WIDE)
                one = code.constant(1, _WIDE)
                self._ends[place] = code.binary("addi", self._extents[place], one)

    # The walk

    def _block(self, block: Block) -> Block:
        code = self._code
        outer, code.operations = code.operations, []
        for operation in block.operations:
            code.source = operation.source
            if operation.name in _ACCESSES:
                self._access(operation)
            elif operation.name == "scf.for":
                self._loop(operation)
            elif operation.name == "scf.while":
                self._while(operation)
            elif operation.name == "scf.if":
                self._branch(operation)
            else:
                code.operations.append(operation)
                self._twins.follow(operation)
        made, code.operations = code.operations, outer
        return Block(block.label, block.arguments, tuple(made))

    def _at_once(self, block: Block) -> Block:
        with self._teller.waiting(in_loop=False):
            return self._block(block)

    def _loop(self, operation: Operation) -> None:
        """A loop hands on what wraps inside of it; what wrapped before, and stays, is known."""
        twins, body = self._twins, operation.regions[0].block
        own, given = body.arguments[1:], operation.operands[3:]
        before = [
            twins.of(value) if inside in twins else ()
            for inside, value in zip(own, given, strict=True)
        ]
        carried: dict[int, Value] = {}  # by place, what stands for all turns so far
        first: set[int] = set()  # places at which a turn may leave what was there before
        while True:
            for place, inside in enumerate(own):
                twins.put(inside, (*before[place], *self._carried_part(carried, place, inside)))
            at = len(self._sites), len(twins.wraps), self._unchecked.copy()
            with self._teller.waiting(in_loop=True) as later:
                block = self._block(body)
            left = [twins.of(value) for value in block.operations[-1].operands]
            grown = {
                place: self._code.value(kind)
                for place, inside in enumerate(own)
                if (kind := self._room(inside, left[place], before[place], carried.get(place)))
            }
            if not grown:
                break
            for place in grown:
                if not set(before[place]) <= set(left[place]):
                    before[place] = ()
                    first.add(place)
            carried |= grown
            del self._sites[at[0] :], twins.wraps[at[1] :]
            self._unchecked = at[2]
        words = tuple(
            twins.sure(given[place]) if place in first else self._code.constant(0, word.kind)
            for place, word in carried.items()
        )
        loop, block = self._teller.keeping(operation, block, later)
        block = replace(block, arguments=(*block.arguments, *carried.values()))
        made = self._put(loop, (*loop.operands, *words), (block,), carried, before)
        kept = loop.results[len(operation.results) :]
        for place, result in enumerate(operation.results):
            twins.put(result, (*before[place], *self._carried_part(made, place, result)))
        self._teller.tell_kept(later, kept)

    def _room(
        self, inside: Value, left: Parts, before: Parts, carried: Value | None
    ) -> Kind | None:
        """What a turn needs to hand on what it adds, where it has not got that yet."""
        if inside not in self._twins:
            return None
        stays = set(before) <= set(left)
        new = set(left) - set(self._twins.of(inside))
        if not new and stays:
            return None
        kind = _word(inside, flat=stays and all(part.is_scalar for part in new))
        enough = carried is not None and stays and kind.shape in ((), carried.kind.shape)
        return None if enough else kind

    @staticmethod
    def _carried_part(carried: dict[int, Value], place: int, value: Value) -> tuple[Part, ...]:
        if place not in carried:
            return ()
        word = carried[place]
        if word.kind.shape == value.kind.shape:
            return (Part(word),)
        spread = Operation("tt.splat", (), (value,), {}, Source())
        return (Part(word, (spread,)),)

    def _while(self, operation: Operation) -> None:
        """Both of its halves hand on a word for each number that addresses are made of."""
        before, after = (region.block for region in operation.regions)
        given = self._words(before.arguments)
        # What the first half hands on goes to the second one, and is what the loop makes.
        watched = [
            place
            for place, both in enumerate(zip(after.arguments, operation.results, strict=True))
            if any(value in self._twins for value in both)
        ]
        made, found = (
            self._words(values, watched) for values in (after.arguments, operation.results)
        )
        halves = [
            replace(block, arguments=(*block.arguments, *words.values()))
            for block, words in ((before, given), (after, made))
        ]
        first, second = map(self._at_once, halves)
        words = tuple(self._twins.sure(operation.operands[place]) for place in given)
        regions = [
            Region((self._handing_over(first, made, first=1),)),
            Region((self._handing_over(second, given),)),
        ]
        self._code.operations.append(
            replace(
                operation,
                operands=(*operation.operands, *words),
                results=(*operation.results, *found.values()),
                regions=tuple(regions),
            )
        )

    def _words(self, values: Sequence[Value], places: Sequence[int] = ()) -> dict[int, Value]:
        """By place, a word for each of these, or for all that may be made of what wrapped."""
        chosen = places or [place for place, value in enumerate(values) if value in self._twins]
        words = {place: self._code.value(values[place].kind.of("i32")) for place in chosen}
        for place, word in words.items():
            self._twins.put(values[place], (Part(word),))
        return words

    def _branch(self, operation: Operation) -> None:
        blocks = [self._at_once(region.block) for region in operation.regions if region.blocks]
        carried: dict[int, Value] = {}
        for place, result in enumerate(operation.results):
            parts = [self._twins.of(block.operations[-1].operands[place]) for block in blocks]
            if result in self._twins and any(parts):
                flat = all(part.is_scalar for some in parts for part in some)
                carried[place] = self._code.value(_word(result, flat))
        made = self._put(operation, operation.operands, blocks, carried)
        for place, result in enumerate(operation.results):
            self._twins.put(result, self._carried_part(made, place, result))

    def _put(
        self,
        operation: Operation,
        operands: tuple[Value, ...],
        blocks: Sequence[Block],
        carried: dict[int, Value],
        known: Sequence[Parts] = (),
    ) -> dict[int, Value]:
        """The operation over these blocks, each of which hands its twins over; what it makes.

        `known`: by place, what need not be handed over.
        """
        ended = [self._handing_over(block, carried, known) for block in blocks]
        regions = [Region((block,)) for block in ended]
        regions += [Region(()) for _ in operation.regions[len(regions) :]]
        made = {place: self._code.value(word.kind) for place, word in carried.items()}
        self._code.operations.append(
            replace(
                operation,
                operands=operands,
                results=(*operation.results, *made.values()),
                regions=tuple(regions),
            )
        )
        return made

    def _handing_over(
        self, block: Block, carried: dict[int, Value], known: Sequence[Parts] = (), first: int = 0
    ) -> Block:
        """`first`: which of the last operation's operands is the first to be handed on."""
        *before, last = block.operations
        more = []
        with self._code.at(before):
            for place, word in carried.items():
                parts = self._twins.of(last.operands[first + place])
                new = [part for part in parts if not known or part not in known[place]]
                more.append(self._twins.word(new, word.kind))
        ended = replace(last, operands=(*last.operands, *more))
        return replace(block, operations=(*before, ended))

    # An access

    def _access(self, operation: Operation) -> None:
        code, pointer = self._code, operation.operands[0]
        verb, place = _ACCESSES[operation.name]
        mask = None
        if place is not None and len(operation.operands) > place:
            mask = operation.operands[place]
        origin = self._origins[pointer]
        if origin is None:
            self._unchecked["its pointer came from no one argument"] += 1
        row = self._rows.of.get(operation)
        here, on = (pointer, mask) if row is None else (row.first, row.on)
        watched = (pointer,) if row is None else (row.first, row.last)
        word = self._twins.united(*watched)
        bounds = "bounds" in self._checks and origin is not None
        if word is None and not bounds:
            code.operations.append(operation)
            return
        zero = code.constant(0, here.kind.of("i32"))
        if word is not None and on is not None:
            word = code.chosen(on, word, zero)
        address = code.emit("tt.ptr_to_int", (here,), here.kind.of("i64"))
        bad = None
        if bounds:
            assert origin is not None
            bad = self._outside(address, origin, _size(operation), row.count if row else 1)
            bad = bad if on is None else code.binary("andi", on, bad)
            outside = code.chosen(bad, code.constant(OUTSIDE, zero.kind), zero)
            word = outside if word is None else code.binary("ori", word, outside)
        assert word is not None
        own = None if origin is None else list(self._extents).index(origin)
        self._sites.append(Site(verb, pointer.kind.pointee, operation.source, own))
        self._teller.tell(Told(len(self._sites) - 1, word, address, operation.source))
        if bad is not None and place is not None:
            operation = _masked(operation, place, self._narrowed(pointer, mask, bad))
        code.operations.append(operation)

    def _outside(self, address: Value, origin: int, size: int, count: int | Value) -> Value:
        """Where so many elements from there on are not all inside of the argument."""
        code, shape = self._code, address.kind.shape
        far = code.binary("subi", address, code.splat(self._bases[origin], shape))
        if isinstance(count, int):
            limit = code.splat(self._limit(origin, count * size), shape)
        else:
            reach = code.binary("muli", count, code.constant(size, count.kind))
            limit = code.binary("subi", code.splat(self._ends[origin], shape), reach)
            limit = code.binary("maxsi", limit, code.constant(0, limit.kind))
        return code.compare(UGE, far, limit)

    def _narrowed(self, pointer: Value, mask: Value | None, bad: Value) -> Value:
        """The mask without what is outside: a whole row, or a lane that was looked at alone."""
        code, shape = self._code, pointer.kind.shape
        alone = bad.kind.shape == shape
        good = code.binary(
            "xori", bad, code.constant(1, bad.kind), **(self._together(pointer) if alone else {})
        )
        if not good.kind.shape:
            good = code.splat(good, shape)
        elif not alone:
            good = code.emit("tt.broadcast", (good,), Kind("i1", shape))
        return good if mask is None else code.binary("andi", mask, good)

    def _together(self, pointer: Value) -> dict[str, str]:
        """That neighbours which one instruction moves are on or off together, by our mask.

        It is true while no lane is outside, which is why lanes that are off count as inside. When
        one is, the first of them speaks for all; and Triton would move each lane alone without.
        """
        axis = self._runs.axis(pointer)
        if axis is None:
            return {}
        size = max(1, Kind(pointer.kind.pointee).bits // 8)
        lanes = [1] * len(pointer.kind.shape)
        lanes[axis] = min(max(1, _VECTOR // size), pointer.kind.shape[axis])
        listed = ", ".join(map(str, lanes))
        return {"tt.constancy": f"dense<[{listed}]> : tensor<{len(lanes)}xi32>"}

    def _limit(self, origin: int, size: int) -> Value:
        """How far from its start so many bytes of an argument may begin, and no farther."""
        if (origin, size) not in self._limits:
            code = self._code
            with code.at(self._entry):
                less = code.binary("subi", self._ends[origin], code.constant(size, _WIDE))
                limit = code.binary("maxsi", less, code.constant(0, _WIDE))
            self._limits[origin, size] = limit
        return self._limits[origin, size]


def _masked(operation: Operation, place: int, mask: Value) -> Operation:
    operands = (*operation.operands[:place], mask, *operation.operands[place + 1 :])
    attributes = operation.attributes
    if "operandSegmentSizes" in attributes:
        others = len(operands) - 1 - place
        attributes = {**attributes, "operandSegmentSizes": f"array<i32: {place}, 1, {others}>"}
    return replace(operation, operands=operands, attributes=attributes)


def _word(value: Value, flat: bool) -> Kind:
    return Kind("i32") if flat else value.kind.of("i32")


def _size(operation: Operation) -> int:
    kind = Kind(operation.operands[0].kind.pointee)
    return max(1, kind.bits // 8)


def _blocks(region: Region) -> list[Block]:
    found = list(region.blocks)
    for block in region.blocks:
        for operation in block.operations:
            for inner in operation.regions:
                found += _blocks(inner)
    return found
