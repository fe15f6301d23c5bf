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
from harness.compiled.reporting import assembly, constraints
from harness.compiled.twins import SYMBOLS, Part, Parts, Twins
from harness.compiled.vectors import Runs
from harness.kernels import flow
from harness.kernels.graph import Block, Graph, Kind, Operation, Region, Source, Value
from harness.native.lanes import Site

OUTSIDE = -(1 << 31)  # the bit of a report's word that is no wrap's
_WIDEST = 16  # lanes that one report looks at
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
        self._graph, self._threads, self._checks = graph, threads, checks
        values = (value for one in graph.operations() for value in (*one.results, *one.operands))
        inner = (value for block in _blocks(graph.body) for value in block.arguments)
        self._code = Builder([*values, *inner])
        self._origins = flow.origins(graph)
        self._runs = Runs(graph)
        watched = flow.addressing(graph) if "wraps" in checks else flow.Addressing({}, frozenset())
        self._twins = Twins(self._code, watched)
        self._sites: list[Site] = []
        self._unchecked: Counter[str] = Counter()
        self._report, self._launch, *extents = graph.parameters[: 2 + pointers]
        own = [
            place
            for place, parameter in enumerate(graph.parameters)
            if parameter.kind.is_pointer and place >= 2 + pointers
        ]
        if len(own) != pointers:
            raise CannotInstrument(f"{len(own)} pointers and {pointers} extents")
        self._extents = dict(zip(own, extents, strict=True))
        self._bases: dict[int, Value] = {}
        self._limits: dict[tuple[int, int], Value] = {}

    def rewritten(self) -> Rewritten:
        first, *others = self._graph.body.blocks
        self._enter()
        blocks = [self._block(first, keep=True), *map(self._block, others)]
        return Rewritten(
            replace(self._graph, body=Region(tuple(blocks))),
            tuple(self._sites),
            tuple(self._wrap_site(operation) for operation in self._twins.wraps),
            dict(self._unchecked),
        )

    def _wrap_site(self, operation: Operation) -> Site:
        signed = self._twins.signed(operation.result)
        element = operation.result.kind.element
        return Site(SYMBOLS[operation.name], element if signed else f"u{element}", operation.source)

    def _enter(self) -> None:
        """What every check needs, once: where each argument starts and how far it may be read."""
        code = self._code
        sizes = {
            (place, _size(operation))
            for operation in self._graph.operations()
            if operation.name in _ACCESSES
            and (place := self._origins[operation.operands[0]]) is not None
        }
        for place, size in sorted(sizes):
            pointer = self._graph.parameters[place]
            self._bases[place] = code.emit("tt.ptr_to_int", (pointer,), _WIDE)
            less = code.binary("subi", self._extents[place], code.constant(size - 1, _WIDE))
            self._limits[place, size] = code.emit(
                "arith.maxsi", (less, code.constant(0, _WIDE)), _WIDE
            )

    # The walk

    def _block(self, block: Block, keep: bool = False) -> Block:
        code = self._code
        outer = [] if keep else code.operations
        if not keep:
            code.operations = []
        for operation in block.operations:
            code.source = operation.source
            if operation.name in _ACCESSES:
                self._access(operation)
            elif operation.name == "scf.for":
                self._loop(operation)
            elif operation.name == "scf.if":
                self._branch(operation)
            else:
                if operation.name == "scf.while":
                    regions = tuple(map(self._region, operation.regions))
                    operation = replace(operation, regions=regions)
                code.operations.append(operation)
                self._twins.follow(operation)
        made, code.operations = code.operations, outer
        return Block(block.label, block.arguments, tuple(made))

    def _region(self, region: Region) -> Region:
        return Region(tuple(map(self._block, region.blocks)))

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
        block = replace(block, arguments=(*block.arguments, *carried.values()))
        words = tuple(
            twins.sure(given[place]) if place in first else self._code.constant(0, word.kind)
            for place, word in carried.items()
        )
        made = self._put(operation, (*operation.operands, *words), (block,), carried, before)
        for place, result in enumerate(operation.results):
            twins.put(result, (*before[place], *self._carried_part(made, place, result)))

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

    def _branch(self, operation: Operation) -> None:
        blocks = [self._block(region.block) for region in operation.regions if region.blocks]
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
        self, block: Block, carried: dict[int, Value], known: Sequence[Parts]
    ) -> Block:
        *before, last = block.operations
        outer, self._code.operations = self._code.operations, before
        more = []
        for place, word in carried.items():
            parts = self._twins.of(last.operands[place])
            new = [part for part in parts if not known or part not in known[place]]
            more.append(self._twins.word(new, word.kind))
        self._code.operations = outer
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
        wraps = self._twins.united(pointer)
        bounds = "bounds" in self._checks and origin is not None
        if origin is None:
            self._unchecked["its pointer came from no one argument"] += 1
        if wraps is None and not bounds:
            code.operations.append(operation)
            return
        shape = pointer.kind.shape
        address = code.emit("tt.ptr_to_int", (pointer,), Kind("i64", shape))
        word = wraps
        if bounds:
            assert origin is not None
            bad = self._outside(address, origin, _size(operation), mask)
            zero = code.constant(0, Kind("i32", shape))
            outside = code.chosen(bad, code.constant(OUTSIDE, zero.kind), zero)
            if word is not None and mask is not None:
                word = code.chosen(mask, word, zero)
            word = outside if word is None else code.binary("ori", word, outside)
        elif word is not None and mask is not None:
            word = code.chosen(mask, word, code.constant(0, word.kind))
        assert word is not None
        self._tell(operation, verb, origin, word, address)
        if bounds and place is not None:
            stays = code.emit(
                "arith.xori",
                (bad, code.constant(1, bad.kind)),
                bad.kind,
                **self._together(pointer, _size(operation)),
            )
            narrowed = stays if mask is None else code.binary("andi", mask, stays)
            operation = _masked(operation, place, narrowed)
        code.operations.append(operation)

    def _outside(self, address: Value, origin: int, size: int, mask: Value | None) -> Value:
        """The lanes that are on and reach outside of the argument."""
        code, shape = self._code, address.kind.shape
        far = code.binary("subi", address, code.splat(self._bases[origin], shape))
        limit = code.splat(self._limits[origin, size], shape)
        outside = code.compare(UGE, far, limit)
        return outside if mask is None else code.binary("andi", mask, outside)

    def _together(self, pointer: Value, size: int) -> dict[str, str]:
        """That neighbours which one instruction moves are on or off together, by our mask.

        It is true while no lane is outside, which is why lanes that are off count as inside. When
        one is, the first of them speaks for all; and Triton would move each lane alone without.
        """
        axis = self._runs.axis(pointer)
        if axis is None:
            return {}
        lanes = [1] * len(pointer.kind.shape)
        lanes[axis] = min(max(1, _VECTOR // size), pointer.kind.shape[axis])
        listed = ", ".join(map(str, lanes))
        return {"tt.constancy": f"dense<[{listed}]> : tensor<{len(lanes)}xi32>"}

    def _tell(
        self, operation: Operation, verb: str, origin: int | None, word: Value, address: Value
    ) -> None:
        code, shape = self._code, address.kind.shape
        own = None if origin is None else list(self._extents).index(origin)
        self._sites.append(Site(verb, operation.operands[0].kind.pointee, operation.source, own))
        pack = max(1, min(_WIDEST, address.kind.lanes // self._threads)) if shape else 1
        both = (code.splat(self._report, shape), code.splat(self._launch, shape))
        code.emit(
            "tt.elementwise_inline_asm",
            (word, address, *both),
            Kind("i32", shape),
            asm_string=f'"{assembly(len(self._sites) - 1, pack)}"',
            constraints=f'"{constraints(pack)}"',
            packed_element=f"{pack} : i32",
            pure="false",
        )


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
