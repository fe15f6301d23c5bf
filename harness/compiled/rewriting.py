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

from harness.compiled.building import NE, Builder
from harness.compiled.ranges import Ranges
from harness.compiled.reaches import Reach, Reaches
from harness.compiled.rows import Rows
from harness.compiled.telling import Teller, Told
from harness.compiled.twins import SYMBOLS, Part, Parts, Twin, Twins
from harness.compiled.vectors import Runs
from harness.kernels import flow
from harness.kernels.graph import Block, Graph, Kind, Operation, Region, Source, Value
from harness.native.lanes import Site

OUTSIDE = -(1 << 31)  # the bit of a report's word that is no wrap's number
_VECTOR = 16  # bytes that one instruction moves
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
    looks_up: bool  # what is known of memory


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
        watched = flow.Addressing({}, frozenset())
        if "wraps" in checks:
            ends = [end for row in self._rows.of.values() for end in (row.first, row.last)]
            watched = flow.addressing(graph, ends)
        suspects = watched.suspects - self._rows.sure
        self._twins = Twins(self._code, replace(watched, suspects=suspects), Ranges(graph))
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
        self._places = {place: number for number, place in enumerate(own)}
        held = dict(zip(own, extents, strict=True))
        self._reaches = Reaches(graph, self._code, held, report)
        self._unsteady: set[Value] = set()  # what loops hand on and is not always in one place
        self._given: dict[str, dict[int, Twin]] = {}  # by block, what jumps to it hand on besides

    def rewritten(self) -> Rewritten:
        entry, *targets = self._graph.body.blocks
        self._given = {block.label: self._handed(block.arguments) for block in targets}
        first, *others = map(self._block, (entry, *targets))
        first = replace(first, operations=(*self._reaches.entry, *first.operations))
        blocks = (first, *map(self._taking, others))
        return Rewritten(
            replace(self._graph, body=Region(blocks)),
            tuple(self._sites),
            tuple(self._wrap_site(operation) for operation in self._twins.wraps),
            dict(self._unchecked),
            self._reaches.looks_up,
        )

    def _taking(self, block: Block) -> Block:
        more = _values(self._given[block.label])
        return replace(block, arguments=(*block.arguments, *more))

    def _wrap_site(self, operation: Operation) -> Site:
        signed = self._twins.signed(operation.result)
        element = operation.result.kind.element
        return Site(SYMBOLS[operation.name], element if signed else f"u{element}", operation.source)

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
            elif operation.name in ("cf.br", "cf.cond_br"):
                self._jump(operation)
            else:
                code.operations.append(operation)
                self._twins.follow(operation)
                self._reaches.follow(operation)
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
        carried: dict[int, Twin] = {}  # by place, what stands for all turns so far
        first: set[int] = set()  # places at which a turn may leave what was there before
        while True:
            for place, inside in enumerate(own):
                if inside not in self._unsteady:
                    self._reaches.put(inside, self._reaches.of(given[place]))
                twins.put(inside, (*before[place], *self._carried_part(carried, place, inside)))
            at = len(self._sites), len(twins.wraps), self._unchecked.copy()
            with self._teller.waiting(in_loop=True) as later:
                block = self._block(body)
            left = [twins.of(value) for value in block.operations[-1].operands]
            grown = {
                place: self._twins.fresh(shape)
                for place, inside in enumerate(own)
                if (shape := self._room(inside, left[place], before[place], carried.get(place)))
                is not None
            }
            unsteady = self._moved(own, block)
            if not grown and not unsteady:
                break
            for place in grown:
                if not set(before[place]) <= set(left[place]):
                    before[place] = ()
                    first.add(place)
            carried |= grown
            del self._sites[at[0] :], twins.wraps[at[1] :]
            self._unchecked = at[2]
        begun = tuple(
            twins.handed(twins.of(given[place]) if place in first else (), twin.word.kind.shape)
            for place, twin in carried.items()
        )
        for inside, result in zip(own, operation.results, strict=True):
            self._reaches.put(result, self._reaches.of(inside))
        loop, block = self._teller.keeping(operation, block, later)
        block = replace(block, arguments=(*block.arguments, *_values(carried)))
        operands = (*loop.operands, *(value for twin in begun for value in twin))
        made = self._put(loop, operands, (block,), carried, before)
        kept = loop.results[len(operation.results) :]
        for place, result in enumerate(operation.results):
            twins.put(result, (*before[place], *self._carried_part(made, place, result)))
        self._teller.tell_kept(later, kept)

    def _moved(self, own: Sequence[Value], block: Block) -> bool:
        """Whether a turn hands on a pointer into something else than it was handed, once more."""
        moved = [
            inside
            for inside, value in zip(own, block.operations[-1].operands, strict=True)
            if (reach := self._reaches.of(inside)) is not None and reach != self._reaches.of(value)
        ]
        for inside in moved:
            self._reaches.put(inside, None)
        self._unsteady.update(moved)
        return bool(moved)

    def _room(
        self, inside: Value, left: Parts, before: Parts, carried: Twin | None
    ) -> tuple[int, ...] | None:
        """The shape in which a turn hands on what it adds, where it has none that will do."""
        if inside not in self._twins:
            return None
        stays = set(before) <= set(left)
        new = set(left) - set(self._twins.of(inside))
        if not new and stays:
            return None
        shape = () if stays and all(part.is_scalar for part in new) else inside.kind.shape
        enough = carried is not None and stays and shape in ((), carried.word.kind.shape)
        return None if enough else shape

    @staticmethod
    def _carried_part(carried: dict[int, Twin], place: int, value: Value) -> Parts:
        if place not in carried:
            return ()
        twin = carried[place]
        if twin.word.kind.shape == value.kind.shape:
            return (Part(twin),)
        spread = Operation("tt.splat", (), (value,), {}, Source())
        return (Part(twin, (spread,)),)

    def _while(self, operation: Operation) -> None:
        """Both of its halves hand on a twin of each number that addresses are made of."""
        before, after = (region.block for region in operation.regions)
        given = self._handed(before.arguments)
        # What the first half hands on goes to the second one, and is what the loop makes.
        watched = [
            place
            for place, both in enumerate(zip(after.arguments, operation.results, strict=True))
            if any(value in self._twins for value in both)
        ]
        made, found = (
            self._handed(values, watched) for values in (after.arguments, operation.results)
        )
        halves = [
            replace(block, arguments=(*block.arguments, *_values(twins)))
            for block, twins in ((before, given), (after, made))
        ]
        first, second = map(self._at_once, halves)
        begun = {place: self._sure(operation.operands[place]) for place in given}
        regions = [
            Region((self._handing_over(first, made, first=1),)),
            Region((self._handing_over(second, given),)),
        ]
        self._code.operations.append(
            replace(
                operation,
                operands=(*operation.operands, *_values(begun)),
                results=(*operation.results, *_values(found)),
                regions=tuple(regions),
            )
        )

    def _handed(self, values: Sequence[Value], places: Sequence[int] = ()) -> dict[int, Twin]:
        """By place, a twin of each of these, or of all that may be made of what wrapped."""
        chosen = places or [place for place, value in enumerate(values) if value in self._twins]
        handed = {place: self._twins.fresh(values[place].kind.shape) for place in chosen}
        for place, twin in handed.items():
            self._twins.put(values[place], (Part(twin),))
        return handed

    def _sure(self, value: Value) -> Twin:
        return self._twins.handed(self._twins.of(value), value.kind.shape)

    def _branch(self, operation: Operation) -> None:
        blocks = [self._at_once(region.block) for region in operation.regions if region.blocks]
        carried: dict[int, Twin] = {}
        for place, result in enumerate(operation.results):
            parts = [self._twins.of(block.operations[-1].operands[place]) for block in blocks]
            if result in self._twins and any(parts):
                flat = all(part.is_scalar for some in parts for part in some)
                carried[place] = self._twins.fresh(() if flat else result.kind.shape)
        made = self._put(operation, operation.operands, blocks, carried)
        for place, result in enumerate(operation.results):
            ways = [self._reaches.of(block.operations[-1].operands[place]) for block in blocks]
            if all(way is not None and way.everywhere for way in ways):
                self._reaches.put(result, self._reaches.chosen(operation.operands[0], *ways))
            self._twins.put(result, self._carried_part(made, place, result))

    def _jump(self, operation: Operation) -> None:
        """Another block is handed the twins of what it is handed."""
        ways = []
        for label, values in flow.successors(operation):
            handed = {place: self._sure(values[place]) for place in self._given[label]}
            ways.append((*values, *_values(handed)))
        condition = operation.operands[:1] if operation.name == "cf.cond_br" else ()
        made = (*condition, *(value for way in ways for value in way))
        sizes = ", ".join(map(str, [1, *map(len, ways)]))
        more = {"operandSegmentSizes": f"array<i32: {sizes}>"} if condition else {}
        attributes = {**operation.attributes, **more}
        self._code.operations.append(replace(operation, operands=made, attributes=attributes))

    def _put(
        self,
        operation: Operation,
        operands: tuple[Value, ...],
        blocks: Sequence[Block],
        carried: dict[int, Twin],
        known: Sequence[Parts] = (),
    ) -> dict[int, Twin]:
        """The operation over these blocks, each of which hands its twins over; what it makes.

        `known`: by place, what need not be handed over.
        """
        ended = [self._handing_over(block, carried, known) for block in blocks]
        regions = [Region((block,)) for block in ended]
        regions += [Region(()) for _ in operation.regions[len(regions) :]]
        made = {place: self._twins.fresh(twin.word.kind.shape) for place, twin in carried.items()}
        self._code.operations.append(
            replace(
                operation,
                operands=operands,
                results=(*operation.results, *_values(made)),
                regions=tuple(regions),
            )
        )
        return made

    def _handing_over(
        self, block: Block, carried: dict[int, Twin], known: Sequence[Parts] = (), first: int = 0
    ) -> Block:
        """`first`: which of the last operation's operands is the first to be handed on."""
        *before, last = block.operations
        more: list[Value] = []
        with self._code.at(before):
            for place, twin in carried.items():
                parts = self._twins.of(last.operands[first + place])
                new = [part for part in parts if not known or part not in known[place]]
                more += self._twins.handed(new, twin.word.kind.shape)
        ended = replace(last, operands=(*last.operands, *more))
        return replace(block, operations=(*before, ended))

    # An access

    def _access(self, operation: Operation) -> None:
        code, pointer = self._code, operation.operands[0]
        verb, place = _ACCESSES[operation.name]
        mask = None
        if place is not None and len(operation.operands) > place:
            mask = operation.operands[place]
        row = self._rows.of.get(operation)
        here, on = (pointer, mask) if row is None else (row.first, row.on)
        twin = self._twins.united(here)
        last = self._twins.united(row.last, but=here) if row else None
        reach = self._reaches.of(here)
        if reach is None:
            self._unchecked["nobody knows what its pointer points into"] += 1
        bounds = "bounds" in self._checks and reach is not None
        if twin is None and last is None and not bounds:
            code.operations.append(operation)
            return
        address = far = code.emit("tt.ptr_to_int", (here,), here.kind.of("i64"))
        if row is not None and last is not None:
            twin, far = self._of_either(twin, address, last, row.last)
        word, *operands = (None,) if twin is None else self._twins.told(twin, on)
        bad = None
        if reach is not None and bounds:
            bad = self._reaches.outside(reach, address, _size(operation), row.count if row else 1)
            bad = bad if on is None else code.binary("andi", on, bad)
            kind = here.kind.of("i32")
            outside = code.chosen(bad, code.constant(OUTSIDE, kind), code.constant(0, kind))
            if self._reaches.origins[here] is None:
                operands = self._which(word, operands, reach, here.kind.shape)
            word = outside if word is None else code.binary("ori", word, outside)
        assert word is not None
        origin = self._reaches.origins[here]
        own = None if origin is None else self._places[origin]
        self._sites.append(Site(verb, pointer.kind.pointee, operation.source, own))
        site = len(self._sites) - 1
        self._teller.tell(Told(site, operation.source, word, far, tuple(operands)))
        if reach is not None and reach.sure and bad is not None and place is not None:
            operation = _masked(operation, place, self._narrowed(pointer, mask, bad))
        code.operations.append(operation)

    def _which(
        self, word: Value | None, operands: Sequence[Value], reach: Reach, shape: tuple[int, ...]
    ) -> list[Value]:
        """What a report says besides: of a wrap its numbers, else what the pointer lies in."""
        lies = self._reaches.operands(reach, shape)
        if word is None:
            return list(lies)
        wrapped = self._code.compare(NE, word, self._code.constant(0, word.kind))
        both = zip(operands, lies, strict=True)
        return [self._code.chosen(wrapped, *one) for one in both]

    def _of_either(
        self, twin: Twin | None, address: Value, last: Twin, end: Value
    ) -> tuple[Twin, Value]:
        """Of a row: its first lane's twin, or its last one's, and where that lane is."""
        code = self._code
        there = code.emit("tt.ptr_to_int", (end,), address.kind)
        found = code.chosen(self._twins.holds(last), there, address)
        if twin is None:
            return last, found
        found = code.chosen(self._twins.holds(twin), address, found)
        return self._twins.either(twin, last), found

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


def _masked(operation: Operation, place: int, mask: Value) -> Operation:
    operands = (*operation.operands[:place], mask, *operation.operands[place + 1 :])
    attributes = operation.attributes
    if "operandSegmentSizes" in attributes:
        others = len(operands) - 1 - place
        attributes = {**attributes, "operandSegmentSizes": f"array<i32: {place}, 1, {others}>"}
    return replace(operation, operands=operands, attributes=attributes)


def _values(twins: dict[int, Twin]) -> tuple[Value, ...]:
    return tuple(value for twin in twins.values() for value in twin)


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
