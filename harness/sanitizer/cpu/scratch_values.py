"""The places of a kernel's values: scalars in registers, tensors in scratch memory.

A scratch buffer is named by its offset ("@128") until it is used. `emit_buffer_address` computes
the address in the block that uses it: a register of one block may not exist in another.
"""

from __future__ import annotations

from harness.sanitizer.cpu.abi import LaunchField
from harness.sanitizer.ir import flow
from harness.sanitizer.ir.graph import IROperation, IRValue, KernelGraph, ValueType
from harness.sanitizer.ir.operation_sites import OperationSite
from harness.sanitizer.llvm.number_formats import llvm_storage_type, size_of
from harness.sanitizer.llvm.text import LlvmFunction
from harness.sanitizer.violations.kinds import ViolationKind

_ALIGNMENT = 64
LaneRegister = tuple[str, str | None]  # the register of a lane, and that of its overflow state
LaneCache = dict[tuple[IRValue, str], LaneRegister]  # by value and index


class ScratchValues:
    """One kernel's code so far, with its scalars, its scratch buffers and its sites."""

    measures_extents = False  # of the 32-bit integers in addresses (`overflow_tracking`)

    def __init__(self, graph: KernelGraph) -> None:
        self.graph = graph
        self.code = LlvmFunction(
            "define internal i32 @program(ptr %context, i32 %x, i32 %y, i32 %z)"
        )
        self.address_integers = flow.analyze_addresses(graph)
        self.sites: list[OperationSite] = []
        self.scalars: dict[IRValue, str] = {}
        self.buffers: dict[IRValue, str] = {}
        self._scratch_used = 0
        self._buffers_by_address: dict[str, str] = {}
        self.global_definitions: list[str] = []
        self.scratch_base = self.code.to_pointer(self.code.load_context(LaunchField.SCRATCH))

    def emit_lane(self, value: IRValue, index: str, lane_cache: LaneCache) -> LaneRegister:
        """Compute one element of a value."""
        raise NotImplementedError

    def add_site(
        self, label: str, operation: IROperation, element: str, argument: int | None = None
    ) -> int:
        order = operation.get_int("sem") if operation.name.startswith("tt.atomic") else 0
        self.sites.append(OperationSite(label, element, operation.source, argument, order))
        return len(self.sites) - 1

    @property
    def scratch_size(self) -> int:
        """The bytes of all buffers, with space for the alignment of the first."""
        return self._scratch_used + _ALIGNMENT

    def allocate_scratch(self, size: int) -> str:
        """Reserve bytes of scratch, and return the buffer's name."""
        offset = self._scratch_used
        self._scratch_used += -(-size // _ALIGNMENT) * _ALIGNMENT
        return f"@{offset}"

    def emit_buffer_address(self, buffer: str) -> str:
        if buffer[0] == "%":
            return buffer
        base = self.code.element_pointer(self.scratch_base, "i8", buffer[1:])
        self._buffers_by_address[base] = buffer
        return base

    def allocate_for_type(self, value_type: ValueType) -> str:
        return self.allocate_scratch(max(1, value_type.lanes) * size_of(value_type.element))

    def emit_lane_load(self, buffer: str, element: str, index: str) -> str:
        stored = llvm_storage_type(element)
        value = self.code.load_element(stored, self.emit_buffer_address(buffer), index)
        return value if element != "i1" else self.code.let(f"icmp ne i8 {value}, 0")

    def emit_lane_store(self, value: str, buffer: str, element: str, index: str) -> None:
        stored = llvm_storage_type(element)
        if element == "i1":
            value = self.code.let(f"zext i1 {value} to i8")
        self.code.store_element(stored, value, self.emit_buffer_address(buffer), index)

    def emit_copy(self, target: str, source: str, size: int) -> None:
        to, start = self.emit_buffer_address(target), self.emit_buffer_address(source)
        self.code.copy_bytes(to, start, size)

    def find_buffer(self, address: str) -> str:
        """Find the buffer of an address that `emit_buffer_address` has returned."""
        return self._buffers_by_address[address]

    def set_result_buffer(self, result: IRValue, buffer: str) -> None:
        """Take a buffer as the result of an operation."""
        if result.type.shape:
            self.buffers[result] = buffer
        else:
            self.scalars[result] = self.emit_lane_load(buffer, result.type.element, "0")

    def emit_report(
        self, violation: ViolationKind, site: int, address: str = "0", other: str = "0"
    ) -> str:
        """Emit a report; return whether it was the last of the launch."""
        arguments = ", ".join(f"i64 {value}" for value in (address, "0", "0", other, "0"))
        ends = self.code.let(
            f"call i32 @unfix_report(ptr %context, i64 {int(violation)}, i64 {site}, {arguments})"
        )
        return self.code.let(f"icmp ne i32 {ends}, 0")
