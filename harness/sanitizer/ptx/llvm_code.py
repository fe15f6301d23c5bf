"""A function in LLVM while it is being written: what all of the executor's functions share.

`%context` is the table of the launch, `%frame` that of the running thread (`abi`).
"""

from __future__ import annotations

from harness.sanitizer.llvm.number_formats import FLOAT_SUFFIXES
from harness.sanitizer.llvm.text import LlvmFunction
from harness.sanitizer.ptx.abi import (
    REGION_ROW,
    ContextField,
    FrameField,
    PtxReportField,
)
from harness.sanitizer.violations.kinds import ViolationKind


class PtxFunction(LlvmFunction):
    # Expressions

    def call_intrinsic(self, name: str, kind: str, *operands: int | str) -> str:
        """Call LLVM's function of this name on operands of one type, the result's as well."""
        listed = ", ".join(f"{kind} {operand}" for operand in operands)
        return self.let(f"call {kind} @llvm.{name}.{FLOAT_SUFFIXES.get(kind, kind)}({listed})")

    def extract_bits(self, value: str, first: int | str, mask: int, kind: str = "i64") -> str:
        """Return the bits of an integer from the first one on, as many as the mask has."""
        return self.let(f"and {kind} {self.let(f'lshr {kind} {value}, {first}')}, {mask}")

    # Memory

    def get_context(self, field: ContextField) -> str:
        return self.load_field("%context", field)

    def set_context(self, field: ContextField, value: str) -> None:
        self.store_element("i64", value, "%context", field)

    def get_frame(self, field: FrameField) -> str:
        return self.load_field("%frame", field)

    def set_frame(self, field: FrameField, value: str) -> None:
        self.store_element("i64", value, "%frame", field)

    def find_frame(self, thread: str) -> str:
        """Return the address of another thread's frame."""
        offset = self.let(f"mul i64 {thread}, {self.get_context(ContextField.FRAME_SIZE)}")
        base = self.to_pointer(self.get_context(ContextField.FRAMES))
        return self.element_pointer(base, "i8", offset)

    def advance_epoch(self) -> str:
        epoch = self.let(f"add i64 {self.get_context(ContextField.EPOCH)}, 1")
        self.set_context(ContextField.EPOCH, epoch)
        return epoch

    def load_region(self) -> tuple[str, str]:
        """Load the region `%region`, or that of `%address`: its number (i64), and its row."""
        slot = self.alloca("i32", "%region")
        with self.when(self.let("icmp eq i32 %region, 0")):
            self.store("i32", self.let("call i32 @ptx_lookup(ptr %context, i64 %address)"), slot)
        number = self.let(f"zext i32 {self.load('i32', slot)} to i64")
        table = self.to_pointer(self.get_context(ContextField.REGIONS))
        return number, self.element_pointer(table, REGION_ROW, number)

    # Control

    def start_loop(self) -> tuple[str, str]:
        """Start an endless loop; return the labels of its head and of what follows it."""
        head, end = self.make_name("again"), self.make_name("over")
        self.jump(head)
        self.start_block(head)
        return head, end

    def fill_report(
        self,
        kind: ViolationKind,
        site: int | str,
        *,
        address: str = "0",
        size: str = "0",
        region: str = "0",
        other: str = "0",
    ) -> None:
        """Fill the launch's report about the thread of `%frame`."""
        report = self.to_pointer(self.get_context(ContextField.REPORT))
        values = {
            PtxReportField.KIND: int(kind),
            PtxReportField.SITE: site,
            PtxReportField.ADDRESS: address,
            PtxReportField.SIZE: size,
            PtxReportField.REGION: region,
            PtxReportField.THREAD: self.get_frame(FrameField.THREAD),
            PtxReportField.OTHER: other,
            PtxReportField.X: self.get_context(ContextField.CTA_X),
            PtxReportField.Y: self.get_context(ContextField.CTA_Y),
            PtxReportField.Z: self.get_context(ContextField.CTA_Z),
        }
        for field, value in values.items():
            self.store_element("i64", str(value), report, field)
