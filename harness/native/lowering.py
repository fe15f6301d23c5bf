"""A kernel's graph as LLVM's assembly: programs one by one, a tensor operation a loop over lanes.

Programs run one after the other, so branches, loops of any length, atomics and what one program
leaves for another need no masks and no care. `lanes` says where values are, `blocks` what leads
where; here are the operations. An integer that is on its way into an address has a twin: 0, or the
number of a wrap remembered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from harness.kernels import flow
from harness.kernels.graph import Graph, Kind, Operation, Value
from harness.native import accesses, elements, folds, formats, views
from harness.native.blocks import Blocks
from harness.native.formats import Refused, llvm_type, size_of
from harness.native.lanes import Site
from harness.native.layout import Context, Fault, Report
from harness.native.layout import Region as Region_
from harness.native.text import Function

_IGNORED = frozenset(
    "tt.print llvm.intr.assume ttg.barrier gpu.barrier ttg.local_barrier tt.return".split()
)


@dataclass(frozen=True, slots=True)
class Lowered:
    text: str
    sites: tuple[Site, ...]
    scratch: int  # bytes
    kinds: tuple[Kind, ...]  # of the parameters
    reads: dict[int, tuple[int, ...]]  # of a parameter: how large its elements are read
    writes: dict[int, tuple[int, ...]]
    roams: bool  # some pointers have no known origin
    talks: bool  # programs tell each other something by atomics
    blocks: tuple[tuple[tuple[str, int], ...], ...]  # the source lines of each block


class Lowering(Blocks):
    def __init__(self, graph: Graph, exact: bool = False) -> None:
        super().__init__(graph, exact)
        self._reads: dict[int, set[int]] = defaultdict(set)
        self._writes: dict[int, set[int]] = defaultdict(set)
        self._roams = False

    def lowered(self) -> Lowered:
        code = self.code
        if self.graph.functions:
            raise Refused(f"calls that are not inlined: {', '.join(self.graph.functions)}")
        arguments = code.pointer(code.field("%context", Context.ARGUMENTS))
        self.regions = code.pointer(code.field("%context", Context.REGIONS))
        for place, parameter in enumerate(self.graph.parameters):
            if parameter.kind.shape:
                raise Refused(f"a parameter of type {parameter.kind}")
            self.scalars[parameter] = self._argument(arguments, place, parameter.kind)
        self.function(self.graph.body)
        return Lowered(
            self._module(),
            tuple(self.sites),
            self.scratch,
            tuple(parameter.kind for parameter in self.graph.parameters),
            {place: tuple(sorted(sizes)) for place, sizes in self._reads.items()},
            {place: tuple(sorted(sizes)) for place, sizes in self._writes.items()},
            self._roams,
            flow.talk(self.graph),
            tuple(self.lines),
        )

    def _module(self) -> str:
        text = "\n".join([*self.globals, str(self.code), _launch()])
        needed = [formats.prelude(text), elements.declarations(text), accesses.declarations(text)]
        return "\n".join([*needed, text])

    def _argument(self, table: str, place: int, kind: Kind) -> str:
        number = self.code.field(table, place)
        target = llvm_type(kind.element)
        if target == "i64":
            return number
        if target[0] == "i":
            return self.code.let(f"trunc i64 {number} to {target}")
        if target == "double":
            return self.code.let(f"bitcast i64 {number} to double")
        bits = self.code.let(f"trunc i64 {number} to i{32 if target == 'float' else 16}")
        return self.code.let(f"bitcast i{32 if target == 'float' else 16} {bits} to {target}")

    def operation(self, operation: Operation) -> None:
        name = operation.name
        if name in _IGNORED:
            return
        if name in views.TABLE and operation.result.kind.shape:
            for result in operation.results:
                self.views[result] = operation
        elif name in elements.TABLE:
            self._element_wise(operation)
        elif name in _SPECIAL:
            if operation.regions and name.startswith("scf."):
                self.settle()
            _SPECIAL[name](self, operation)
        elif not name.endswith(("yield", "cf.br", "cf.cond_br", "scf.condition")):
            raise Refused(name)

    def _element_wise(self, operation: Operation) -> None:
        result = operation.result
        if result.kind.shape:
            # What cannot be done is said now, whether or not anybody needs the result.
            llvm_type(result.kind.element)
            self.pending[result] = operation
            return
        given = [self.lane(operand, "0", {}) for operand in operation.operands]
        self.scalars[result], twin = self.computed(operation, given)
        if twin is not None:
            self.wraps.scalars[result] = twin

    # Single operations

    def _constant(self, operation: Operation) -> None:
        result, text = operation.result, operation.attributes["value"]
        self.scalars[result] = formats.literal(text.split(":")[0], result.kind.element)

    def _poison(self, operation: Operation) -> None:
        zero = (
            "0.0"
            if llvm_type(operation.result.kind.element) in ("half", "float", "double")
            else "0"
        )
        self.scalars[operation.result] = zero

    def _program_id(self, operation: Operation) -> None:
        self.scalars[operation.result] = f"%{'xyz'[operation.number('axis')]}"

    def _num_programs(self, operation: Operation) -> None:
        side = self.code.field("%context", Context.GRID_X + operation.number("axis"))
        self.scalars[operation.result] = self.code.let(f"trunc i64 {side} to i32")

    def _unsplat(self, operation: Operation) -> None:
        [source] = operation.operands
        self.held(source)
        value, twin = self.lane(source, "0", {})
        self.scalars[operation.result] = value
        if twin is not None:
            self.wraps.scalars[operation.result] = twin

    def _assert(self, operation: Operation) -> None:
        [condition] = operation.operands
        message = operation.attributes.get("message", "").strip('"')
        site = self.site(message, operation, "i1")
        self.held(condition)
        with self.code.loop(max(1, condition.kind.lanes)) as index:
            holds, _ = self.lane(condition, index, {})
            with self.code.when(self.code.let(f"xor i1 {holds}, true"), leaves=True):
                self.report(Fault.ASSERTION, site)

    # Memory

    def _in_memory(self, value: Value | None) -> tuple[str, str]:
        """Where a value and its twin lie, as a call is given them."""
        if value is None:
            return "null", "null"
        if not value.kind.shape:
            room = self.room(8)
            self.store_lane(self.scalars[value], room, value.kind.element, "0")
            twin = self.wraps.scalars.get(value)
            if twin is None:
                return self.address(room), "null"
            other = self.room(4)
            self.store_lane(twin, other, "i32", "0")
            return self.address(room), self.address(other)
        twin = self.wraps.buffers.get(value)
        return self.address(self.buffers[value]), "null" if twin is None else self.address(twin)

    def access(
        self,
        verb: str,
        operation: Operation,
        mask: Value | None,
        values: str,
        other: Value | None = None,
    ) -> str:
        """Have an access checked, and done unless it is an update; the addresses it is at."""
        pointer = operation.operands[0]
        code, element = self.code, pointer.kind.pointee
        size = 8 if element.startswith("ptr<") else size_of(element)
        origin = self.origins.get(pointer)
        site = self.site(verb, operation, element, origin)
        if origin is None:
            self._roams = True
            region = "null"
        else:
            region = code.at(self.regions, f"[{len(Region_)} x i64]", origin)
            if verb != "write" and not operation.flag("isVolatile"):
                self._reads[origin].add(size)
            if verb != "read":
                self._writes[origin].add(size)
        addresses, wraps = self._in_memory(pointer)
        masked, _ = self._in_memory(mask)
        filler, _ = self._in_memory(other)
        wrong = code.let(
            f"call i32 @unfix_{verb}{size}(ptr %context, i64 {site}, ptr {region},"
            f" i64 {max(1, pointer.kind.lanes)}, ptr {addresses}, ptr {masked}, ptr {wraps},"
            f" ptr {values}, ptr {filler})"
        )
        with code.when(code.let(f"icmp ne i32 {wrong}, 0"), leaves=True):
            code.do("ret i32 1")
        return addresses

    def _load(self, operation: Operation) -> None:
        groups = operation.groups() or [operation.operands, (), ()]
        pointer, mask, other = ([*group, None][0] for group in groups)
        self.held(*(value for value in (pointer, mask, other) if value is not None))
        result = operation.result
        room = self.room_for(result.kind)
        self.access("read", operation, mask, self.address(room), other)
        self.made(result, room)

    def _store(self, operation: Operation) -> None:
        _, *rest = operation.operands
        self.held(*operation.operands)
        if operation.flag("addressOnly"):  # checked, and nothing moved
            self.access("update", operation, rest[0] if rest else None, "null")
            return
        value, mask = rest[0], rest[1] if len(rest) > 1 else None
        self.access("write", operation, mask, self._in_memory(value)[0])


_SPECIAL: dict[str, Callable[[Lowering, Operation], None]] = {
    "arith.constant": Lowering._constant,
    "ub.poison": Lowering._poison,
    "tt.get_program_id": Lowering._program_id,
    "tt.get_num_programs": Lowering._num_programs,
    "tt.unsplat": Lowering._unsplat,
    "tt.assert": Lowering._assert,
    "tt.load": Lowering._load,
    "tt.store": Lowering._store,
    "tt.atomic_rmw": folds.atomic,
    "tt.atomic_cas": folds.atomic,
    "tt.reduce": folds.reduce,
    "tt.scan": folds.scan,
    "tt.histogram": folds.histogram,
    "tt.dot": folds.dot,
    "scf.for": Lowering.for_,
    "scf.if": Lowering.if_,
    "scf.while": Lowering.while_,
}


def _launch() -> str:
    """All programs of a launch, the last axis of the grid first; it ends at the first report."""
    code = Function("define i32 @launch(ptr %context)")
    y, z = (code.field("%context", place) for place in (Context.GRID_Y, Context.GRID_Z))
    chosen = code.field("%context", Context.PROGRAMS)
    with code.loop(code.field("%context", Context.COUNT)) as index:
        code.store("i64", index, code.at("%context", "i64", Context.ORDINAL))
        code.store("i64", "0", code.at("%context", "i64", Context.WRAP_COUNT))
        rest = code.let(f"udiv i64 {index}, {z}")
        places = [
            code.slot("i64", code.let(text))
            for text in (f"udiv i64 {rest}, {y}", f"urem i64 {rest}, {y}", f"urem i64 {index}, {z}")
        ]
        with code.when(code.let(f"icmp ne i64 {chosen}, 0")):
            named = code.at(code.pointer(chosen), "[3 x i64]", index)
            for axis, place in enumerate(places):
                code.store("i64", code.field(named, axis), place)
        program = [code.load("i64", place) for place in places]
        given = ", ".join(f"i32 {code.let(f'trunc i64 {one} to i32')}" for one in program)
        wrong = code.let(f"call i32 @program(ptr %context, {given})")
        with code.when(code.let(f"icmp ne i32 {wrong}, 0"), leaves=True):
            report = code.pointer(code.field("%context", Context.REPORT))
            for field, one in zip((Report.X, Report.Y, Report.Z), program, strict=True):
                code.store("i64", one, code.at(report, "i64", field))
            code.do("ret i32 1")
    code.do("ret i32 0")
    return str(code)
