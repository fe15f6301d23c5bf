"""The memory that each pointer may point into: its start and its number of bytes.

- A pointer from one argument: the argument, with the extent that the launch passes.
- One of several arguments (`tl.where(c, p, q)`): the bounds are selected along with the pointer.
- A pointer that the kernel loaded, or made from an integer: the storage that it points into before
  anything is added to it, by a table on the device (`storage_registry`). A pointer into no known
  storage may point anywhere. The table may be out of date, so the reader of a report repeats the
  search, and such an access is reported but not masked off.

Sizes are kept plus one, as `checks.bounds` wants them. Example: a float32 tensor of 6 elements at
4096 has the bounds (4096, 25).
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.sanitizer.checks.bounds import measure_limit
from harness.sanitizer.checks.words import Region
from harness.sanitizer.gpu.accesses import get_verb
from harness.sanitizer.gpu.graph_builder import SLE, ULT, GraphBuilder
from harness.sanitizer.gpu.report_assembly import KernelTable
from harness.sanitizer.gpu.storage_registry import MAX_STORAGES
from harness.sanitizer.ir import flow
from harness.sanitizer.ir.graph import IROperation, IRValue, KernelGraph, ValueType
from harness.sanitizer.ir.operation_sites import OperationSite
from harness.sanitizer.ir.operations import (
    LANEWISE_OPERATIONS,
    POINTER_PRESERVING,
    SHAPE_OPERATIONS,
)

_INT64 = ValueType("i64")
_UNBOUNDED = 1 << 62
_SAME_MEMORY_OPERATIONS = LANEWISE_OPERATIONS & POINTER_PRESERVING


@dataclass(frozen=True, slots=True)
class PointerBounds:
    """The memory that a pointer may point into: one for all lanes, or one for each."""

    start: IRValue
    size_plus_one: IRValue
    from_argument: bool
    known_at_entry: bool  # computed at the kernel's entry

    @property
    def shape(self) -> tuple[int, ...]:
        return self.start.type.shape


class PointerBoundsTracker:
    def __init__(
        self, graph: KernelGraph, code: GraphBuilder, extents: dict[int, IRValue], report: IRValue
    ) -> None:
        self.origins = flow.find_pointer_origins(graph)
        self.entry_operations: list[IROperation] = []  # emitted once, at the kernel's entry
        self._pointer_numbers = {place: number for number, place in enumerate(extents)}
        self._graph, self._code = graph, code
        self._extents_by_parameter, self._report = extents, report
        self._load_attributes = _find_load_attributes(graph)
        self._bounds: dict[IRValue, PointerBounds] = {}
        self._argument_bounds: dict[int, PointerBounds] = {}
        self._limits: dict[tuple[IRValue, int], IRValue] = {}
        self._storage_table: IRValue | None = None

    def get_pointer_number(self, pointer: IRValue) -> int | None:
        """Return the number of the kernel's pointer that it comes from, if it is from one."""
        origin = self.origins.get(pointer)
        return None if origin is None else self._pointer_numbers[origin]

    def make_site(self, operation: IROperation, pointer: IRValue | None = None) -> OperationSite:
        """Make the site of an access for a report, through a pointer of its own or of its row."""
        accessed = operation.operands[0]
        number = self.get_pointer_number(accessed if pointer is None else pointer)
        return OperationSite(get_verb(operation), accessed.type.pointee, operation.source, number)

    def get_bounds(self, pointer: IRValue) -> PointerBounds | None:
        origin = self.origins.get(pointer)
        return self._bounds.get(pointer) if origin is None else self._get_argument_bounds(origin)

    def set_bounds(self, pointer: IRValue, bounds: PointerBounds | None) -> None:
        if bounds is None:
            self._bounds.pop(pointer, None)
        elif self._has_unknown_origin(pointer):
            self._bounds[pointer] = bounds

    def make_region(
        self, bounds: PointerBounds, size: int, count: int | IRValue, shape: tuple[int, ...]
    ) -> Region[IRValue]:
        """Return the memory of `count` elements from an address on, for addresses of a shape.

        A limit that is known at the kernel's entry is computed there.
        """
        code, whole = self._code, bounds.size_plus_one
        if isinstance(count, int) and bounds.known_at_entry and not bounds.shape:
            key = whole, count * size
            if key not in self._limits:
                with code.insert_into(self.entry_operations):
                    less = code.constant(count * size, _INT64)
                    self._limits[key] = measure_limit(code, whole, less)
            limit = code.splat(self._limits[key], shape)
        else:
            whole = code.splat(whole, shape)
            less = code.constant(count * size if isinstance(count, int) else size, whole.type)
            if not isinstance(count, int):
                less = code.binary("muli", count, less)
            limit = measure_limit(code, whole, less)
        return Region(code.splat(bounds.start, shape), limit)

    def to_report_operands(
        self, bounds: PointerBounds, shape: tuple[int, ...]
    ) -> tuple[IRValue, IRValue]:
        return self._code.splat(bounds.start, shape), self._code.splat(bounds.size_plus_one, shape)

    def track_operation(self, operation: IROperation) -> None:
        """Emit the bounds of an operation's result, behind it."""
        if len(operation.results) != 1 or not self._has_unknown_origin(operation.result):
            return
        name, result = operation.name, operation.result
        if name in _SAME_MEMORY_OPERATIONS:
            self.set_bounds(result, self.get_bounds(operation.operands[0]))
        elif name in SHAPE_OPERATIONS:
            bounds = self.get_bounds(operation.operands[0])
            if bounds is not None and bounds.shape:
                kind = result.type.with_element("i64")
                start, size = (
                    self._code.clone_operation(operation, (value,), kind)
                    for value in (bounds.start, bounds.size_plus_one)
                )
                bounds = PointerBounds(start, size, bounds.from_argument, known_at_entry=False)
            self.set_bounds(result, bounds)
        elif name == "arith.select":
            condition, *both = operation.operands
            self.set_bounds(
                result,
                self.select_bounds(condition, self.get_bounds(both[0]), self.get_bounds(both[1])),
            )
        elif name in ("tt.int_to_ptr", "tt.load"):
            self.set_bounds(result, self._look_up_storage(operation))

    def select_bounds(
        self, condition: IRValue, true: PointerBounds | None, false: PointerBounds | None
    ) -> PointerBounds | None:
        if true is None or false is None or true == false:
            return true if true == false else None
        shape = max(condition.type.shape, true.shape, false.shape, key=len)
        code = self._code
        if condition.type.shape != shape:
            condition = code.splat(condition, shape)
        start, size = (
            code.select(condition, self._code.splat(first, shape), self._code.splat(second, shape))
            for first, second in (
                (true.start, false.start),
                (true.size_plus_one, false.size_plus_one),
            )
        )
        return PointerBounds(
            start, size, true.from_argument and false.from_argument, known_at_entry=False
        )

    def _has_unknown_origin(self, value: IRValue) -> bool:
        return value.type.is_pointer and self.origins.get(value) is None

    def _get_argument_bounds(self, parameter_index: int) -> PointerBounds:
        if parameter_index not in self._argument_bounds:
            code = self._code
            with code.insert_into(self.entry_operations):
                start = code.get_address(self._graph.parameters[parameter_index])
                size = code.binary(
                    "addi", self._extents_by_parameter[parameter_index], code.constant(1, _INT64)
                )
            self._argument_bounds[parameter_index] = PointerBounds(
                start, size, from_argument=True, known_at_entry=True
            )
        return self._argument_bounds[parameter_index]

    # Known storages

    def _look_up_storage(self, operation: IROperation) -> PointerBounds:
        """Emit a binary search for the last storage that begins at or before the pointer."""
        code, pointer = self._code, operation.result
        if self._storage_table is None:
            with code.insert_into(self.entry_operations):
                at = code.binary(
                    "addi", self._report, code.constant(int(KernelTable.STORAGE_TABLE), _INT64)
                )
                self._storage_table = self.load_int64(at)
        kind = pointer.type.with_element("i64")
        address = code.get_address(pointer)
        place = code.splat(self._storage_table, kind.shape)
        step = MAX_STORAGES
        while step := step // 2:
            probe = code.binary("addi", place, code.constant(16 * step, kind))
            before = code.compare(SLE, self.load_int64(probe), address)
            place = code.select(before, probe, place)
        start = self.load_int64(place)
        end = self.load_int64(code.binary("addi", place, code.constant(8, kind)))
        inside = code.compare(ULT, address, end)
        size = code.binary("subi", end, start)
        size = code.binary("addi", size, code.constant(1, kind))
        return PointerBounds(
            code.select(inside, start, code.constant(0, kind)),
            code.select(inside, size, code.constant(_UNBOUNDED, kind)),
            from_argument=False,
            known_at_entry=False,
        )

    def load_int64(
        self, address: IRValue, mask: IRValue | None = None, volatile: bool = False
    ) -> IRValue:
        """Load int64 from addresses."""
        return self.load(self._code.point_to_int64(address), address.type, mask, volatile)

    def load(
        self, pointer: IRValue, kind: ValueType, mask: IRValue | None = None, volatile: bool = False
    ) -> IRValue:
        """Load from a pointer; the compiler must not move or merge a `volatile` load."""
        overrides = {} if mask is None else {"operandSegmentSizes": "array<i32: 1, 1, 0>"}
        overrides |= {"isVolatile": "true"} if volatile else {}
        operands = (pointer,) if mask is None else (pointer, mask)
        return self._code.emit("tt.load", operands, kind, **{**self._load_attributes, **overrides})


def _find_load_attributes(graph: KernelGraph) -> dict[str, str]:
    """Find the attributes that this Triton gives a load without a mask."""
    loads = (operation for operation in graph.walk() if operation.name == "tt.load")
    load = next(loads, None)
    attributes = {} if load is None else load.attributes
    return {
        "cache": "1 : i32",
        "evict": "1 : i32",
        "isVolatile": "false",
        **{name: text for name, text in attributes.items() if name == "boundaryCheck"},
        "operandSegmentSizes": "array<i32: 1, 0, 0>",
    }
