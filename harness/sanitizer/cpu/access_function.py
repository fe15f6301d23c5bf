"""The frame of a checked access in LLVM: loops over active lanes, reports of violations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from harness.sanitizer.cpu.abi import RegionField
from harness.sanitizer.llvm.text import LlvmFunction
from harness.sanitizer.violations.kinds import ViolationKind

_PARAMETERS = (
    "ptr %context, i64 %site, ptr %region, i64 %lanes, ptr %addresses, ptr %mask, ptr %states,"
    " ptr %values, ptr %other"
)


class AccessFunction:
    """One function: accesses to a block of addresses with a mask, of elements of one size."""

    def __init__(self, access: str, size: int) -> None:
        self.access, self.size, self.llvm_type = access, size, f"i{8 * size}"
        self.name = f"unfix_{access}{size}"
        self.function = self._code = LlvmFunction(f"define i32 @{self.name}({_PARAMETERS})")
        self._violating_lanes = self._code.alloca("i64", "0")
        self._active_lanes = self._code.alloca("i64", "0")
        self._first_address = self._code.alloca("i64", "0")
        self._first_other = self._code.alloca("i64", "0")

    @contextmanager
    def _each_active_lane(self) -> Iterator[tuple[str, str]]:
        """Emit the body for each active lane, with its index and its address."""
        code = self._code
        with code.loop("%lanes") as index:
            masked = code.let("icmp ne ptr %mask, null")
            test, on, off = code.make_name("test"), code.make_name("on"), code.make_name("off")
            code.emit(f"br i1 {masked}, label %{test}, label %{on}")
            code.start_block(test)
            bit = code.load_element("i8", "%mask", index)
            code.emit(f"br i1 {code.let(f'icmp ne i8 {bit}, 0')}, label %{on}, label %{off}")
            code.start_block(on)
            yield index, code.load_element("i64", "%addresses", index)
            code.jump(off)
            code.start_block(off)

    def _fold_lanes(self, fold: Callable[[str, str], None]) -> None:
        """Emit a body without branches for every lane, with its index and 1 if it is active, or 0.

        LLVM turns such a loop into vectors, which a branch for each lane would prevent.
        """
        code = self._code
        masked = code.let("icmp ne ptr %mask, null")
        with code.when(masked), code.loop("%lanes") as index:
            bit = code.let(f"icmp ne i8 {code.load_element('i8', '%mask', index)}, 0")
            fold(index, code.let(f"zext i1 {bit} to i64"))
        with code.when(code.let(f"xor i1 {masked}, true")), code.loop("%lanes") as index:
            fold(index, "1")

    def _count_violation(self, condition: str, address: str, other: str = "0") -> None:
        """Count a violating lane; the first one's address is for the report."""
        code = self._code
        with code.when(condition):
            many = code.load("i64", self._violating_lanes)
            with code.when(code.let(f"icmp eq i64 {many}, 0")):
                code.store("i64", address, self._first_address)
                code.store("i64", other, self._first_other)
            code.increment(self._violating_lanes, "1")

    def _return_if_violated(self, violation: ViolationKind) -> None:
        """Report lanes that were counted; return if that was the last report of the launch."""
        code = self._code
        many = code.load("i64", self._violating_lanes)
        with code.when(code.is_nonzero(many)):
            self._emit_report(
                violation,
                code.load("i64", self._first_address),
                many,
                code.load("i64", self._first_other),
            )
            code.store("i64", "0", self._violating_lanes)

    def _emit_report(
        self, violation: ViolationKind, address: str, violating_lanes: str, other: str
    ) -> None:
        code = self._code
        active = code.load("i64", self._active_lanes)
        region = code.let("ptrtoint ptr %region to i64")
        values = (address, violating_lanes, active, other, region)
        arguments = ", ".join(f"i64 {value}" for value in values)
        ends = code.let(
            f"call i32 @unfix_report(ptr %context, i64 {int(violation)}, i64 %site, {arguments})"
        )
        with code.when(code.let(f"icmp ne i32 {ends}, 0"), exits=True):
            code.emit("ret i32 1")

    @contextmanager
    def _when_counted(self) -> Iterator[None]:
        """Emit the body, which returns, where a lane was counted."""
        code = self._code
        many = code.load("i64", self._violating_lanes)
        with code.when(code.is_nonzero(many), exits=True):
            yield
            code.emit("ret i32 0")

    def _emit_storage_offset(self, address: str) -> str:
        return self._code.let(
            f"sub i64 {address}, {self._code.load_field('%region', RegionField.STORAGE)}"
        )
