"""What the parts of the lowering ask of the whole: its code so far, its rooms, its lanes."""

from __future__ import annotations

from typing import Protocol

from harness.kernels.cpu.llvm_text import LlvmFunction
from harness.kernels.ir.flow import AddressIntegers
from harness.kernels.ir.graph import IROperation, IRValue, ValueType

LaneRegister = tuple[str, str | None]  # a value in a register, and its twin
LaneCache = dict[tuple[IRValue, str], LaneRegister]


class OverflowStateEmitter(Protocol):
    """Twins of integers that lead to addresses."""

    scalars: dict[IRValue, str]
    buffers: dict[IRValue, str]

    def emit_merge(self, states: list[str]) -> str | None: ...
    def set_result_buffer(self, result: IRValue, buffer: str) -> None: ...

    def emit_overflow_record(
        self,
        site: int,
        overflowed: str,
        signed: bool,
        left: tuple[str, str],
        right: tuple[str, str],
        result: tuple[str, str],
        operand_state: str | None,
    ) -> str: ...


class ValueEmitter(Protocol):
    """Where the values of a kernel are."""

    exact: bool
    code: LlvmFunction
    address_integers: AddressIntegers
    scalars: dict[IRValue, str]
    buffers: dict[IRValue, str]
    global_definitions: list[str]

    @property
    def overflows(self) -> OverflowStateEmitter: ...

    def add_site(
        self, label: str, operation: IROperation, element: str, argument: int | None = None
    ) -> int: ...

    def allocate_scratch(self, size: int) -> str: ...
    def allocate_for_type(self, value_type: ValueType) -> str: ...
    def emit_buffer_address(self, buffer: str) -> str: ...
    def emit_lane_load(self, buffer: str, element: str, index: str) -> str: ...
    def emit_lane_store(self, value: str, buffer: str, element: str, index: str) -> None: ...
    def emit_copy(self, target: str, source: str, size: int) -> None: ...
    def emit_lane(self, value: IRValue, index: str, lane_cache: LaneCache) -> LaneRegister: ...
    def materialize(self, *values: IRValue) -> None: ...
    def find_buffer(self, address: str) -> str: ...
    def set_result_buffer(self, result: IRValue, buffer: str) -> None: ...


class OperationEmitter(ValueEmitter, Protocol):
    """And what is done with them."""

    def lower_operation(self, operation: IROperation) -> None: ...

    def emit_access(
        self,
        access: str,
        operation: IROperation,
        mask: IRValue | None,
        values: str,
        other: IRValue | None = None,
    ) -> str: ...
