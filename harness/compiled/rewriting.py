"""A graph with checks written into it: bounds, wraps and fences in front of each access.

What is an access, which argument its pointer came from and which integers lead to it is `flow`'s
to say, as for the executor on a CPU. The check's parameters stand before the kernel's own: the
report, the launch's number, a table of fences where there are any, and for each pointer how many
bytes it may reach. What loops and branches hand on is handed on with what is known of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.compiled import LINE, PART, PLACES, Asked, assertions
from harness.compiled.accesses import ACCESSES, Accesses
from harness.compiled.building import Builder
from harness.compiled.fences import Fences
from harness.compiled.grid import Grid
from harness.compiled.part import placed
from harness.compiled.races import Races
from harness.compiled.ranges import Ranges
from harness.compiled.reaches import Reaches
from harness.compiled.rows import Rows
from harness.compiled.telling import Teller
from harness.compiled.twins import SYMBOLS, Part, Parts, Twin, Twins
from harness.compiled.unwritten import Unwritten
from harness.compiled.vectors import Runs
from harness.kernels import flow
from harness.kernels.graph import Block, Graph, Operation, Region, Source, Value
from harness.native.lanes import Site

_REFUSED = ("tt.descriptor_", "tt.experimental_", "tt.make_tensor_descriptor", "ttng.", "ttg.")


class CannotInstrument(Exception):
    """A kernel that runs as it is, and why."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    graph: Graph
    sites: tuple[Site, ...]
    wraps: tuple[Site, ...]
    unchecked: dict[str, int]  # accesses without a check, by the reason


def rewritten(graph: Graph, asked: Asked, threads: int) -> Rewritten:
    """`threads`: of a program."""
    return _Rewriting(graph, asked, threads).rewritten()


class _Rewriting:
    def __init__(self, graph: Graph, asked: Asked, threads: int) -> None:
        if graph.functions:
            raise CannotInstrument(f"it calls {', '.join(graph.functions)}, which is not inlined")
        for operation in graph.operations():
            if operation.name.startswith(_REFUSED) and not operation.name.endswith("barrier"):
                raise CannotInstrument(f"it uses {operation.name}")
        values = (value for one in graph.operations() for value in (*one.results, *one.operands))
        inner = (value for block in _blocks(graph.body) for value in block.arguments)
        self._code = Builder([*values, *inner])
        heads = dict(zip(asked.heads, graph.parameters, strict=False))
        if PART in asked.checks:
            graph = placed(graph, self._code, [heads[name] for name in PLACES])
        self._runs = Runs(graph)
        self._rows = Rows(
            graph, self._code, self._runs, {name: mask for name, (_, mask) in ACCESSES.items()}
        )
        self._graph = graph = self._rows.graph
        watched = flow.Addressing({}, frozenset())
        if "wraps" in asked.checks:
            ends = [end for row in self._rows.of.values() for end in (row.first, row.last)]
            watched = flow.addressing(graph, ends)
        suspects = watched.suspects - self._rows.sure
        named = len(asked.heads)
        watched = replace(watched, suspects=suspects)
        self._twins = Twins(self._code, watched, Ranges(graph), heads.get(LINE))
        extents = graph.parameters[named : named + asked.pointers]
        self._teller = Teller(self._code, heads["report"], heads["launch"], threads)
        own = [
            place
            for place, parameter in enumerate(graph.parameters)
            if parameter.kind.is_pointer and place >= named
        ]
        if len(own) != asked.pointers:
            raise CannotInstrument(f"{len(own)} pointers and {asked.pointers} extents")
        held = dict(zip(own, extents, strict=True))
        self._reaches = Reaches(graph, self._code, held, heads["report"])
        lists = heads.get("fences")
        if lists is not None and any(
            one.name in ACCESSES and self._reaches.origins[one.operands[0]] is None
            for one in graph.operations()
        ):
            raise CannotInstrument("fences are not asked of a pointer that is no one argument's")
        self._sites: list[Site] = []
        grid = Grid(self._code, self._reaches.entry)
        places = {place: number for number, place in enumerate(own)}
        self._accesses = Accesses(
            self._code,
            self._teller,
            self._rows,
            self._runs,
            self._twins,
            self._reaches,
            None if lists is None else Fences(self._code, lists, self._reaches, grid),
            places,
            self._sites,
            "bounds" in asked.checks,
            LINE not in asked.checks,  # or a line's wrap would find its site's records taken
        )
        given = self._code, self._teller, self._reaches, places, self._sites
        self._unwritten = Unwritten(*given) if "unwritten" in asked.checks else None
        self._races = self._racing(heads, asked, grid, *given) if "races" in asked.checks else None
        self._unsteady: set[Value] = set()  # what loops hand on and is not always in one place
        self._given: dict[str, dict[int, Twin]] = {}  # by block, what jumps to it hand on besides

    def _racing(self, heads: dict[str, Value], asked: Asked, *given: Any) -> Races | None:
        if flow.talk(self._graph):
            many = sum(one.name in ACCESSES for one in self._graph.operations())
            self._accesses.unchecked["races, as its programs may tell each other something"] = many
            return None
        return Races(self._graph, (heads["turn"], heads["shadow"]), asked.beside, *given)

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
            dict(self._accesses.unchecked),
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
            if operation.name in ACCESSES:
                self._access(operation)
                self._reaches.follow(operation)
            elif operation.name == "scf.for":
                self._loop(operation)
            elif operation.name == "scf.while":
                self._while(operation)
            elif operation.name == "scf.if":
                self._branch(operation)
            elif operation.name in ("cf.br", "cf.cond_br"):
                self._jump(operation)
            elif operation.name == "tt.assert":
                assertions.told(operation, code, self._teller, self._sites)
            else:
                code.operations.append(operation)
                self._twins.follow(operation)
                self._reaches.follow(operation)
        made, code.operations = code.operations, outer
        return Block(block.label, block.arguments, tuple(made))

    def _access(self, operation: Operation) -> None:
        made = self._accesses.checked(operation)
        if self._races is not None:
            self._races.watch(made)
        self._code.operations.append(made)
        if self._unwritten is not None:
            self._unwritten.follow(made)

    def _at_once(self, block: Block) -> Block:
        with self._teller.waiting(in_loop=False):
            return self._block(block)

    def _loop(self, operation: Operation) -> None:
        """A loop hands on what wraps inside of it; what wrapped before, and stays, is known."""
        twins, accesses, body = self._twins, self._accesses, operation.regions[0].block
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
            at = len(self._sites), len(twins.wraps), accesses.unchecked.copy()
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
            self._accesses.unchecked = at[2]
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


def _values(twins: dict[int, Twin]) -> tuple[Value, ...]:
    return tuple(value for twin in twins.values() for value in twin)


def _blocks(region: Region) -> list[Block]:
    found = list(region.blocks)
    for block in region.blocks:
        for operation in block.operations:
            for inner in operation.regions:
                found += _blocks(inner)
    return found
