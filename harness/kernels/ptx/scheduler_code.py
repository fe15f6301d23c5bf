"""A function of the scheduler while it is being written: the context, the frames of threads."""

from __future__ import annotations

from harness.kernels.cpu.llvm_text import LlvmFunction
from harness.kernels.ptx.abi import ContextField


class SchedulerFunction(LlvmFunction):
    def context(self, field: ContextField) -> str:
        return self.load_field("%context", field)

    def set_context(self, field: ContextField, value: str) -> None:
        self.store_element("i64", value, "%context", field)

    def frame_of(self, thread: str) -> str:
        offset = self.let(f"mul i64 {thread}, {self.context(ContextField.FRAME_SIZE)}")
        base = self.to_pointer(self.context(ContextField.FRAMES))
        return self.element_pointer(base, "i8", offset)

    def both(self, *conditions: str) -> str:
        first, *rest = conditions
        for other in rest:
            first = self.let(f"and i1 {first}, {other}")
        return first

    def equals(self, left: str, right: str | int) -> str:
        right = int(right) if not isinstance(right, str) else right
        return self.let(f"icmp eq i64 {left}, {right}")

    def minimum(self, left: str, right: str) -> str:
        return self.let(f"call i64 @llvm.umin.i64(i64 {left}, i64 {right})")

    def add_epoch(self) -> str:
        epoch = self.let(f"add i64 {self.context(ContextField.EPOCH)}, 1")
        self.set_context(ContextField.EPOCH, epoch)
        return epoch

    def repeat(self) -> tuple[str, str]:
        """Start an endless loop; return the labels of its head and of what follows it."""
        head, end = self.make_name("again"), self.make_name("over")
        self.jump(head)
        self.start_block(head)
        return head, end
