"""A kernel's graph as LLVM's assembly: programs one by one, a tensor operation a loop over lanes.

Programs run one after the other, so branches, loops of any length and atomics need no masks. Three
classes make up the lowering: `scratch_values` and `lane_values` hold the values, `control_flow` the
blocks, and this module the operations. An integer that forms an address has an overflow state
beside it (`overflow_tracking`): 0, or the number of a recorded overflow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from harness.sanitizer.cpu import (
    access_checks,
    assembly,
    cross_lane_ops,
    elementwise_ops,
    mapped_functions,
    prints,
    scaled_products,
    view_ops,
)
from harness.sanitizer.cpu.abi import LaunchField, RegionField
from harness.sanitizer.cpu.arithmetic import Arithmetic
from harness.sanitizer.cpu.control_flow import ControlFlowLowering, emit_interruption
from harness.sanitizer.ir import flow
from harness.sanitizer.ir.graph import IROperation, IRValue, KernelGraph, ValueType
from harness.sanitizer.ir.operation_sites import OperationSite
from harness.sanitizer.ir.operations import (
    EXCHANGING_OPERATIONS,
    IGNORED_OPERATIONS,
    PRODUCT_OPERATIONS,
)
from harness.sanitizer.llvm import number_formats
from harness.sanitizer.llvm.number_formats import UnsupportedOnCpu, llvm_type, size_of
from harness.sanitizer.llvm.text import LlvmFunction
from harness.sanitizer.violations.kinds import ViolationKind


@dataclass(frozen=True, slots=True)
class LoweredKernel:
    text: str
    sites: tuple[OperationSite, ...]
    scratch_size: int  # bytes
    parameter_types: tuple[ValueType, ...]  # types of the parameters
    read_sizes: dict[int, tuple[int, ...]]  # by parameter: sizes of the elements read
    write_sizes: dict[int, tuple[int, ...]]
    loaded_parameters: tuple[int, ...]  # those of which a loaded value is used
    has_unknown_pointers: bool  # some pointers have no known origin
    writes_unknown_memory: bool  # through some of these
    uses_atomic_results: bool  # programs may synchronize by atomics
    has_unseen_synchronization: bool  # or by volatile loads and assembly
    block_lines: tuple[tuple[tuple[str, int], ...], ...]  # the source lines of each block
    approximations: tuple[str, ...]  # what a GPU may compute otherwise, within CUDA's bounds
    # At most so many bytes of shared memory: of products' operands in each stage of a pipeline, and
    # of values that lanes exchange.
    staged_bytes: int
    exchanged_bytes: int


class KernelLowering(ControlFlowLowering):
    def __init__(
        self,
        graph: KernelGraph,
        arithmetic: Arithmetic = Arithmetic.SPECIFIED,
        measures_extents: bool = False,
    ) -> None:
        super().__init__(graph, arithmetic)
        self.measures_extents = measures_extents
        self._read_sizes: dict[int, set[int]] = defaultdict(set)
        self._write_sizes: dict[int, set[int]] = defaultdict(set)
        self._loaded_parameters: set[int] = set()
        self._has_unknown_pointers = False
        self._writes_unknown_memory = False

    def lower_kernel(self) -> LoweredKernel:
        code = self.code
        if self.graph.functions:
            raise UnsupportedOnCpu(f"calls that are not inlined: {', '.join(self.graph.functions)}")
        arguments = code.to_pointer(code.load_context(LaunchField.ARGUMENTS))
        self.regions = code.to_pointer(code.load_context(LaunchField.REGIONS))
        for place, parameter in enumerate(self.graph.parameters):
            if parameter.type.shape:
                raise UnsupportedOnCpu(f"a parameter of type {parameter.type}")
            self.scalars[parameter] = self._emit_argument(arguments, place, parameter.type)
        self.lower_function(self.graph.body)
        return LoweredKernel(
            self._format_module(),
            tuple(self.sites),
            self.scratch_size,
            tuple(parameter.type for parameter in self.graph.parameters),
            {place: tuple(sorted(sizes)) for place, sizes in self._read_sizes.items()},
            {place: tuple(sorted(sizes)) for place, sizes in self._write_sizes.items()},
            tuple(sorted(self._loaded_parameters)),
            self._has_unknown_pointers,
            self._writes_unknown_memory,
            flow.uses_atomic_results(self.graph),
            flow.has_unseen_synchronization(self.graph),
            tuple(self.block_lines),
            tuple(self.approximations),
            *_measure_shared_tiles(self.graph),
        )

    def _format_module(self) -> str:
        text = "\n".join([*self.global_definitions, str(self.code), _build_launch_function()])
        needed = [
            number_formats.select_called_helpers(text),
            elementwise_ops.declare_libm_functions(text),
            access_checks.declare_access_functions(text),
        ]
        if "@dprintf(" in text:
            needed.append(prints.PRINT_DECLARATION)
        return "\n".join([*needed, text])

    def _emit_argument(self, table: str, position: int, value_type: ValueType) -> str:
        number = self.code.load_field(table, position)
        target = llvm_type(value_type.element)
        if target == "i64":
            return number
        if target == "double":
            return self.code.let(f"bitcast i64 {number} to double")
        kind = f"i{number_formats.llvm_type_bits(target)}"
        bits = self.code.let(f"trunc i64 {number} to {kind}")
        return bits if target == kind else self.code.let(f"bitcast {kind} {bits} to {target}")

    def lower_operation(self, operation: IROperation) -> None:
        name = operation.name
        if name in IGNORED_OPERATIONS:
            return
        if name in view_ops.VIEW_EMITTERS and operation.result.type.shape:
            for result in operation.results:
                self.views[result] = operation
        elif name in elementwise_ops.ELEMENT_EMITTERS:
            for approximation in elementwise_ops.list_approximations(operation):
                self.mark_approximation(approximation)
            self._lower_elementwise(operation)
        elif name in OPERATION_EMITTERS:
            if operation.regions and name.startswith("scf."):
                self.materialize_pending()
            OPERATION_EMITTERS[name](self, operation)
        elif not name.endswith(("yield", "return", "cf.br", "cf.cond_br", "scf.condition")):
            raise UnsupportedOnCpu(name)

    def _lower_elementwise(self, operation: IROperation) -> None:
        result = operation.result
        if result.type.shape:
            # An unsupported type is refused now, even if the result is never used.
            llvm_type(result.type.element)
            self.pending[result] = operation
            return
        operands = [self.emit_lane(operand, "0", {}) for operand in operation.operands]
        self.scalars[result], state = self.emit_elementwise(operation, operands)
        if state is not None:
            self.overflows.scalars[result] = state

    # Single operations

    def _lower_constant(self, operation: IROperation) -> None:
        result, text = operation.result, operation.attributes["value"]
        self.scalars[result] = number_formats.format_literal(
            text.split(":")[0], result.type.element
        )

    def _lower_poison(self, operation: IROperation) -> None:
        element = operation.result.type.element
        self.scalars[operation.result] = number_formats.format_zero(element)

    def _lower_program_id(self, operation: IROperation) -> None:
        self.scalars[operation.result] = f"%{'xyz'[operation.get_int('axis')]}"

    def _lower_num_programs(self, operation: IROperation) -> None:
        side = self.code.load_context(LaunchField.GRID_X + operation.get_int("axis"))
        self.scalars[operation.result] = self.code.let(f"trunc i64 {side} to i32")

    def _lower_unsplat(self, operation: IROperation) -> None:
        [source] = operation.operands
        self.materialize(source)
        value, state = self.emit_lane(source, "0", {})
        self.scalars[operation.result] = value
        if state is not None:
            self.overflows.scalars[operation.result] = state

    def _lower_assert(self, operation: IROperation) -> None:
        [condition] = operation.operands
        message = operation.attributes.get("message", "").strip('"')
        site = self.add_site(message, operation, "i1")
        self.materialize(condition)
        with self.code.loop(max(1, condition.type.lanes)) as index:
            holds, _ = self.emit_lane(condition, index, {})
            with self.code.when(self.code.let(f"xor i1 {holds}, true")):
                ends = self.emit_report(ViolationKind.ASSERTION, site)
                with self.code.when(ends, exits=True):
                    self.code.emit("ret i32 1")

    # Memory

    def _emit_addresses(self, value: IRValue | None) -> tuple[str, str]:
        """Emit the addresses of a value and of its overflow state, as arguments of an access."""
        if value is None:
            return "null", "null"
        if not value.type.shape:
            buffer = self.allocate_scratch(8)
            self.emit_lane_store(self.scalars[value], buffer, value.type.element, "0")
            state = self.overflows.scalars.get(value)
            if state is None:
                return self.emit_buffer_address(buffer), "null"
            state_buffer = self.allocate_scratch(4)
            self.emit_lane_store(state, state_buffer, "i32", "0")
            return self.emit_buffer_address(buffer), self.emit_buffer_address(state_buffer)
        state = self.overflows.buffers.get(value)
        state_address = "null" if state is None else self.emit_buffer_address(state)
        return self.emit_buffer_address(self.buffers[value]), state_address

    def emit_access(
        self,
        access: str,
        operation: IROperation,
        mask: IRValue | None,
        values: str,
        other: IRValue | None = None,
    ) -> str:
        """Check an access, do it unless it is an update, and return its block of addresses."""
        pointer = operation.operands[0]
        code, element = self.code, pointer.type.pointee
        size, origin = size_of(element), self.pointer_origins.get(pointer)
        site = self.add_site(access, operation, element, origin)
        if origin is None:
            self._has_unknown_pointers = True
            self._writes_unknown_memory |= access != "read"
            region = "null"
        else:
            region = code.element_pointer(self.regions, f"[{len(RegionField)} x i64]", origin)
            if access != "write" and not operation.get_flag("isVolatile"):
                self._read_sizes[origin].add(size)
            if access != "read":
                self._write_sizes[origin].add(size)
            if access != "write" and values != "null":
                self._loaded_parameters.add(origin)
        addresses, states = self._emit_addresses(pointer)
        masked, _ = self._emit_addresses(mask)
        filler, _ = self._emit_addresses(other)
        violated = code.let(
            f"call i32 @unfix_{access}{size}(ptr %context, i64 {site}, ptr {region},"
            f" i64 {max(1, pointer.type.lanes)}, ptr {addresses}, ptr {masked}, ptr {states},"
            f" ptr {values}, ptr {filler})"
        )
        with code.when(code.let(f"icmp ne i32 {violated}, 0"), exits=True):
            code.emit("ret i32 1")
        return addresses

    def _lower_load(self, operation: IROperation) -> None:
        groups = operation.split_operands() or [operation.operands, (), ()]
        pointer, mask, other = ([*group, None][0] for group in groups)
        self.materialize(*(value for value in (pointer, mask, other) if value is not None))
        result = operation.result
        buffer = self.allocate_for_type(result.type)
        self.emit_access("read", operation, mask, self.emit_buffer_address(buffer), other)
        self.set_result_buffer(result, buffer)

    def _lower_store(self, operation: IROperation) -> None:
        _, *rest = operation.operands
        self.materialize(*operation.operands)
        if operation.get_flag("addressOnly"):  # a check without an access
            access = "read" if operation.get_flag("isRead") else "update"
            self.emit_access(access, operation, rest[0] if rest else None, "null")
            return
        value, mask = rest[0], rest[1] if len(rest) > 1 else None
        self.emit_access("write", operation, mask, self._emit_addresses(value)[0])


def _measure_shared_tiles(graph: KernelGraph) -> tuple[int, int]:
    """Add up the operands of products, and find the largest tensor whose lanes are exchanged."""
    staged, exchanged = 0, 0
    for operation in graph.walk():
        sizes = [
            value.type.lanes * size_of(value.type.element)
            for value in operation.operands
            if value.type.shape
        ]
        if operation.name in PRODUCT_OPERATIONS:
            staged += sum(sizes[:2])
        if operation.name in EXCHANGING_OPERATIONS and sizes:
            exchanged = max(exchanged, *sizes)
    return staged, exchanged


OPERATION_EMITTERS: dict[str, Callable[[KernelLowering, IROperation], None]] = {
    "arith.constant": KernelLowering._lower_constant,
    "ub.poison": KernelLowering._lower_poison,
    "tt.get_program_id": KernelLowering._lower_program_id,
    "tt.get_num_programs": KernelLowering._lower_num_programs,
    "tt.unsplat": KernelLowering._lower_unsplat,
    "tt.assert": KernelLowering._lower_assert,
    "tt.print": prints.lower_print,
    "tt.elementwise_inline_asm": assembly.lower_assembly,
    "tt.load": KernelLowering._lower_load,
    "tt.store": KernelLowering._lower_store,
    "tt.atomic_rmw": cross_lane_ops.lower_atomic,
    "tt.atomic_cas": cross_lane_ops.lower_atomic,
    "tt.reduce": cross_lane_ops.lower_reduce,
    "tt.scan": cross_lane_ops.lower_scan,
    "tt.histogram": cross_lane_ops.lower_histogram,
    "tt.dot": cross_lane_ops.lower_dot,
    "tt.dot_scaled": scaled_products.lower_dot_scaled,
    "tt.map_elementwise": mapped_functions.lower_map,
    "scf.for": KernelLowering.lower_for,
    "scf.if": KernelLowering.lower_if,
    "scf.while": KernelLowering.lower_while,
}


def _build_launch_function() -> str:
    """Run the programs of a launch, the last axis of the grid fastest, to the last report."""
    code = LlvmFunction("define i32 @launch(ptr %context)")
    y, z = (code.load_context(place) for place in (LaunchField.GRID_Y, LaunchField.GRID_Z))
    chosen = code.load_context(LaunchField.CHOSEN_PROGRAMS)
    with code.loop(code.load_context(LaunchField.PROGRAM_COUNT)) as index:
        emit_interruption(code)
        code.store_element("i64", index, "%context", LaunchField.PROGRAM_ORDINAL)
        code.store_element("i64", "0", "%context", LaunchField.OVERFLOW_COUNT)
        rest = code.let(f"udiv i64 {index}, {z}")
        places = [
            code.alloca("i64", code.let(text))
            for text in (f"udiv i64 {rest}, {y}", f"urem i64 {rest}, {y}", f"urem i64 {index}, {z}")
        ]
        with code.when(code.is_nonzero(chosen)):
            named = code.element_pointer(code.to_pointer(chosen), "[3 x i64]", index)
            for axis, place in enumerate(places):
                code.store("i64", code.load_field(named, axis), place)
        program = [code.load("i64", place) for place in places]
        ids = ", ".join(
            f"i32 {code.let(f'trunc i64 {coordinate} to i32')}" for coordinate in program
        )
        ends = code.let(f"call i32 @program(ptr %context, {ids})")
        with code.when(code.let(f"icmp ne i32 {ends}, 0"), exits=True):
            code.emit("ret i32 1")
    code.emit("ret i32 0")
    return str(code)
