"""The frame of a checked access in LLVM: loops over lanes, reports, lanes that leave the access."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from harness.sanitizer.checks.words import Lane, Question
from harness.sanitizer.cpu.abi import OVERFLOW_FLAG, RegionField
from harness.sanitizer.llvm.text import LlvmFunction
from harness.sanitizer.violations.kinds import ViolationKind
from harness.sanitizer.violations.targets import Target, list_kinds

_PARAMETERS = (
    "ptr %context, i64 %site, ptr %region, i64 %lanes, ptr %addresses, ptr %mask, ptr %states,"
    " ptr %values, ptr %other"
)


def build_active_count() -> LlvmFunction:
    """Build the function that counts the active lanes of an access, for a report."""
    code = LlvmFunction("define internal i64 @count_active(ptr %mask, i64 %lanes)")
    with code.when(code.let("icmp eq ptr %mask, null"), exits=True):
        code.emit("ret i64 %lanes")
    count = code.alloca("i64", "0")
    with code.loop("%lanes") as index:
        bit = code.let(f"icmp ne i8 {code.load_element('i8', '%mask', index)}, 0")
        code.increment(count, code.let(f"zext i1 {bit} to i64"))
    code.emit(f"ret i64 {code.load('i64', count)}")
    return code


class LaneCounter:
    """Slots in which code counts the lanes of a report, and keeps what the first one says."""

    def __init__(self, code: LlvmFunction) -> None:
        self._code = code
        self.lanes, self.address, self.other = (code.alloca("i64", "0") for _ in range(3))

    def load(self, slot: str) -> str:
        return self._code.load("i64", slot)

    def count(self, condition: str, address: str, other: str = "0") -> None:
        code = self._code
        with code.when(condition):
            with code.when(code.is_equal(self.load(self.lanes), 0)):
                code.store("i64", address, self.address)
                code.store("i64", other, self.other)
            code.increment(self.lanes, "1")


class AccessFunction:
    """One function: accesses to a block of addresses with a mask, of elements of one size."""

    kinds = list_kinds(Target.TRITON_CPU)
    may_order = False

    def __init__(self, verb: str, size: int) -> None:
        self.verb, self.size, self.llvm_type = verb, size, f"i{8 * size}"
        self.name = f"unfix_{verb}{size}"
        self.code = LlvmFunction(f"define i32 @{self.name}({_PARAMETERS})")
        self._leaves_lanes_out = False

    @contextmanager
    def each_active_lane(self) -> Iterator[Lane[str]]:
        """Emit the body for each active lane."""
        code = self.code
        with code.loop("%lanes") as index:
            masked = code.let("icmp ne ptr %mask, null")
            test, on, off = code.make_name("test"), code.make_name("on"), code.make_name("off")
            code.emit(f"br i1 {masked}, label %{test}, label %{on}")
            code.start_block(test)
            bit = code.load_element("i8", "%mask", index)
            code.emit(f"br i1 {code.let(f'icmp ne i8 {bit}, 0')}, label %{on}, label %{off}")
            code.start_block(on)
            yield Lane(code.load_element("i64", "%addresses", index), index)
            code.jump(off)
            code.start_block(off)

    def fold_lanes(self, fold: Callable[[str, str], None]) -> None:
        """Emit a body without branches for every lane, with its index and 1 if it is active, or 0.

        LLVM turns such a loop into vectors, which a branch for each lane would prevent.
        """
        code = self.code
        masked = code.let("icmp ne ptr %mask, null")
        with code.when(masked), code.loop("%lanes") as index:
            bit = code.let(f"icmp ne i8 {code.load_element('i8', '%mask', index)}, 0")
            fold(index, code.let(f"zext i1 {bit} to i64"))
        with code.when(code.negate(masked)), code.loop("%lanes") as index:
            fold(index, "1")

    # Reports

    @contextmanager
    def skip_reported_lanes(self) -> Iterator[None]:
        self._leaves_lanes_out = True
        yield
        self._leaves_lanes_out = False

    def report_place(self, kind: ViolationKind, question: Question[str]) -> None:
        """Ask all lanes in a loop of vectors, and each lane by itself only if one is wrong."""
        code = self.code
        wrong = code.alloca("i64", "0")

        def fold(index: str, active: str) -> None:
            lane = Lane(code.load_element("i64", "%addresses", index), index)
            hit = code.let(f"zext i1 {question(lane)} to i64")
            hit = code.let(f"and i64 {hit}, {active}")
            code.store("i64", code.let(f"or i64 {code.load('i64', wrong)}, {hit}"), wrong)

        self.fold_lanes(fold)
        with code.when(code.is_nonzero(code.load("i64", wrong))):
            self.report(kind, question)

    def report(self, kind: ViolationKind, question: Question[str]) -> None:
        counter = LaneCounter(self.code)
        with self.each_active_lane() as lane:
            other = self._load_overflow(lane) if kind is ViolationKind.OVERFLOW else "0"
            counter.count(question(lane), lane.address, other)
        with self._when_counted(kind, counter, exits=self._leaves_lanes_out):
            if self._leaves_lanes_out:
                with self.each_active_lane() as lane:
                    self.access_lane(lane, "%region", self.code.negate(question(lane)))
                self.finish_lanes()
                self.code.emit("ret i32 0")

    def _load_overflow(self, lane: Lane[str]) -> str:
        """Load the number of a lane's recorded overflow."""
        state = self.code.load_element("i32", "%states", lane.place)
        number = self.code.let(f"and i32 {state}, {OVERFLOW_FLAG - 1}")
        return self.code.let(f"zext i32 {number} to i64")

    def report_counted(self, kind: ViolationKind, counter: LaneCounter) -> None:
        """Report lanes that were counted; return if that was the last report of the launch."""
        with self._when_counted(kind, counter, exits=False):
            pass

    @contextmanager
    def _when_counted(
        self, kind: ViolationKind, counter: LaneCounter, exits: bool
    ) -> Iterator[None]:
        code, many = self.code, counter.load(counter.lanes)
        with code.when(code.is_nonzero(many), exits=exits):
            active = code.let("call i64 @count_active(ptr %mask, i64 %lanes)")
            first, other = counter.load(counter.address), counter.load(counter.other)
            self.emit_report(kind, first, many, active, other)
            yield

    def emit_report(
        self, kind: ViolationKind, address: str, violating: str, active: str, other: str
    ) -> None:
        code = self.code
        region = code.let("ptrtoint ptr %region to i64")
        values = (address, violating, active, other, region)
        arguments = ", ".join(f"i64 {value}" for value in values)
        ends = code.let(
            f"call i32 @unfix_report(ptr %context, i64 {int(kind)}, i64 %site, {arguments})"
        )
        with code.when(code.let(f"icmp ne i32 {ends}, 0"), exits=True):
            code.emit("ret i32 1")

    # Lanes by themselves

    def access_lane(self, lane: Lane[str], region: str, good: str) -> None:
        """Access one lane by itself; one whose address is not good reads 0 and writes nothing."""
        code = self.code
        kind = "i8" if self.verb == "update" else self.llvm_type
        value = code.element_pointer("%values", kind, lane.place)
        if self.verb != "write":
            value = code.let(
                f"select i1 {code.let('icmp eq ptr %values, null')}, ptr null, ptr {value}"
            )
        with code.when(good):
            place = code.element_pointer("%addresses", "i64", lane.place)
            ends = code.let(
                f"call i32 @{self.name}(ptr %context, i64 %site, ptr {region}, i64 1,"
                f" ptr {place}, ptr null, ptr null, ptr {value}, ptr null)"
            )
            with code.when(code.let(f"icmp ne i32 {ends}, 0"), exits=True):
                code.emit("ret i32 1")
        if self.verb != "write":
            wanted = code.let(f"icmp ne ptr {value}, null")
            with code.when(code.both(wanted, code.negate(good))):
                code.store(kind, "0", value)

    def finish_lanes(self) -> None:
        if self.verb == "read":
            with self.code.when(self.code.let("icmp ne ptr %values, null")):
                self.fill_masked_lanes()

    def fill_masked_lanes(self) -> None:
        code = self.code
        with code.when(code.let("icmp ne ptr %mask, null")), code.loop("%lanes") as index:
            bit = code.load_element("i8", "%mask", index)
            with code.when(code.let(f"icmp eq i8 {bit}, 0")):
                filler = code.alloca(self.llvm_type)
                code.store(self.llvm_type, "0", filler)
                with code.when(code.let("icmp ne ptr %other, null")):
                    filler_value = code.load_element(self.llvm_type, "%other", index)
                    code.store(self.llvm_type, filler_value, filler)
                place = code.element_pointer("%values", self.llvm_type, index)
                code.store(self.llvm_type, code.load(self.llvm_type, filler), place)

    # Memory

    def load_region(self, field: RegionField) -> str:
        return self.code.load_field("%region", field)

    def measure_storage_offset(self, address: str) -> str:
        return self.code.subtract(address, self.load_region(RegionField.STORAGE))

    def changes_value(self, lane: Lane[str]) -> str:
        """Return whether a write's value is another one than the memory has."""
        code = self.code
        stored = code.load(self.llvm_type, code.to_pointer(lane.address) + ", align 1")
        new = code.load_element(self.llvm_type, "%values", lane.place)
        return code.let(f"icmp ne {self.llvm_type} {stored}, {new}")
