"""How far pointers may go: from where to how many bytes on.

Of one argument, what the launch says. Of one of several, what is chosen with it. Of one that was
loaded, or made of a number, what is known of memory: a table on the device (`known`) says where
the storage begins and ends that the pointer lies in, before anything is added to it; one that lies
in none may go anywhere. What a table says may be out of date, so whoever reads the report asks
again, and such an access is told and not taken out.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.compiled.building import SLE, UGE, ULT, Builder
from harness.compiled.known import MOST
from harness.compiled.reporting import Block
from harness.kernels import flow
from harness.kernels.graph import Graph, Kind, Operation, Value

_WIDE = Kind("i64")
_ANYWHERE = 1 << 62
_SPREADING = frozenset(f"tt.{name}" for name in "splat broadcast expand_dims reshape trans".split())
_STAYING = ("tt.addptr", "tt.bitcast")


@dataclass(frozen=True, slots=True)
class Reach:
    """The start of what a pointer lies in, and one byte more than it has: of all lanes, or each."""

    start: Value
    size: Value
    sure: bool  # of arguments
    everywhere: bool  # known from the kernel's beginning on

    @property
    def shape(self) -> tuple[int, ...]:
        return self.start.kind.shape


class Reaches:
    def __init__(
        self, graph: Graph, code: Builder, extents: dict[int, Value], report: Value
    ) -> None:
        self.origins = flow.origins(graph)
        self.entry: list[Operation] = []  # what is needed once
        self._graph, self._code, self._extents, self._report = graph, code, extents, report
        self._like = _plain_load(graph)
        self._of: dict[Value, Reach] = {}
        self._arguments: dict[int, Reach] = {}
        self._limits: dict[tuple[Value, int], Value] = {}
        self._table: Value | None = None

    def of(self, pointer: Value) -> Reach | None:
        origin = self.origins.get(pointer)
        return self._of.get(pointer) if origin is None else self._argument(origin)

    def put(self, pointer: Value, reach: Reach | None) -> None:
        if reach is None:
            self._of.pop(pointer, None)
        elif self._is_open(pointer):
            self._of[pointer] = reach

    def outside(self, reach: Reach, address: Value, size: int, count: int | Value) -> Value:
        """Where so many elements from there on are not all inside."""
        code, shape = self._code, address.kind.shape
        far = code.binary("subi", address, self._spread(reach.start, shape))
        if isinstance(count, int) and reach.everywhere and not reach.shape:
            return code.compare(UGE, far, code.splat(self._limit(reach.size, count * size), shape))
        whole = self._spread(reach.size, shape)
        if isinstance(count, int):
            less = code.constant(count * size, whole.kind)
        else:
            less = code.binary("muli", count, code.constant(size, count.kind))
        return code.compare(UGE, far, self._at_least_none(code.binary("subi", whole, less)))

    def operands(self, reach: Reach, shape: tuple[int, ...]) -> tuple[Value, Value]:
        return self._spread(reach.start, shape), self._spread(reach.size, shape)

    def follow(self, operation: Operation) -> None:
        """Put what is known of an operation's result behind it."""
        if len(operation.results) != 1 or not self._is_open(operation.result):
            return
        name, result = operation.name, operation.result
        if name in _STAYING:
            self.put(result, self.of(operation.operands[0]))
        elif name in _SPREADING:
            given = self.of(operation.operands[0])
            if given is not None and given.shape:
                start, size = (
                    self._code.again(operation, (one,), result.kind.of("i64"))
                    for one in (given.start, given.size)
                )
                given = Reach(start, size, given.sure, everywhere=False)
            self.put(result, given)
        elif name == "arith.select":
            condition, *both = operation.operands
            self.put(result, self.chosen(condition, self.of(both[0]), self.of(both[1])))
        elif name in ("tt.int_to_ptr", "tt.load"):
            self.put(result, self._looked_up(operation))

    def chosen(self, condition: Value, true: Reach | None, false: Reach | None) -> Reach | None:
        if true is None or false is None or true == false:
            return true if true == false else None
        shape = max(condition.kind.shape, true.shape, false.shape, key=len)
        code = self._code
        if condition.kind.shape != shape:
            condition = code.splat(condition, shape)
        start, size = (
            code.chosen(condition, self._spread(one, shape), self._spread(other, shape))
            for one, other in ((true.start, false.start), (true.size, false.size))
        )
        return Reach(start, size, true.sure and false.sure, everywhere=False)

    def _is_open(self, value: Value) -> bool:
        return value.kind.is_pointer and self.origins.get(value) is None

    def _argument(self, place: int) -> Reach:
        if place not in self._arguments:
            code = self._code
            with code.at(self.entry):
                start = code.emit("tt.ptr_to_int", (self._graph.parameters[place],), _WIDE)
                size = code.binary("addi", self._extents[place], code.constant(1, _WIDE))
            self._arguments[place] = Reach(start, size, sure=True, everywhere=True)
        return self._arguments[place]

    def _limit(self, size: Value, less: int) -> Value:
        """How far from the start so many bytes may begin, and no farther."""
        if (size, less) not in self._limits:
            code = self._code
            with code.at(self.entry):
                limit = code.binary("subi", size, code.constant(less, _WIDE))
                self._limits[size, less] = self._at_least_none(limit)
        return self._limits[size, less]

    def _at_least_none(self, number: Value) -> Value:
        return self._code.binary("maxsi", number, self._code.constant(0, number.kind))

    def _spread(self, value: Value, shape: tuple[int, ...]) -> Value:
        return value if value.kind.shape == shape else self._code.splat(value, shape)

    # What is known of memory

    def _looked_up(self, operation: Operation) -> Reach:
        """By halves: the last storage that begins at the pointer or before it."""
        code, pointer = self._code, operation.result
        if self._table is None:
            with code.at(self.entry):
                at = code.binary("addi", self._report, code.constant(int(Block.MEMORY), _WIDE))
                self._table = self.loaded(at)
        kind = pointer.kind.of("i64")
        address = code.emit("tt.ptr_to_int", (pointer,), kind)
        place = code.splat(self._table, kind.shape)
        step = MOST
        while step := step // 2:
            probe = code.binary("addi", place, code.constant(16 * step, kind))
            before = code.compare(SLE, self.loaded(probe), address)
            place = code.chosen(before, probe, place)
        start = self.loaded(place)
        end = self.loaded(code.binary("addi", place, code.constant(8, kind)))
        inside = code.compare(ULT, address, end)
        size = code.binary("subi", end, start)
        size = code.binary("addi", size, code.constant(1, kind))
        return Reach(
            code.chosen(inside, start, code.constant(0, kind)),
            code.chosen(inside, size, code.constant(_ANYWHERE, kind)),
            sure=False,
            everywhere=False,
        )

    def loaded(self, address: Value, mask: Value | None = None, anew: bool = False) -> Value:
        """Numbers of 64 bits that lie there."""
        pointer = self._code.emit("tt.int_to_ptr", (address,), address.kind.of("ptr<i64>"))
        return self.read(pointer, address.kind, mask, anew)

    def read(
        self, pointer: Value, kind: Kind, mask: Value | None = None, anew: bool = False
    ) -> Value:
        """`anew`: now and not before."""
        more = {} if mask is None else {"operandSegmentSizes": "array<i32: 1, 1, 0>"}
        more |= {"isVolatile": "true"} if anew else {}
        given = (pointer,) if mask is None else (pointer, mask)
        return self._code.emit("tt.load", given, kind, **{**self._like, **more})


def _plain_load(graph: Graph) -> dict[str, str]:
    """How Triton writes a load without a mask."""
    found = next((one for one in graph.operations() if one.name == "tt.load"), None)
    more = {} if found is None else found.attributes
    return {
        "cache": "1 : i32",
        "evict": "1 : i32",
        "isVolatile": "false",
        **{name: text for name, text in more.items() if name == "boundaryCheck"},
        "operandSegmentSizes": "array<i32: 1, 0, 0>",
    }
