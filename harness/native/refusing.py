"""An access block of many lanes, in machine code: what is done with each, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from harness.native.layout import Context, Fault, Region, Report
from harness.native.text import Function

_PARAMETERS = (
    "ptr %context, i64 %site, ptr %region, i64 %lanes, ptr %addresses, ptr %mask, ptr %wraps,"
    " ptr %values, ptr %other"
)


class Lanes:
    """One function: a block of addresses with its mask, of elements of one size."""

    def __init__(self, verb: str, size: int) -> None:
        self.verb, self.size, self.kind = verb, size, f"i{8 * size}"
        self.name = f"unfix_{verb}{size}"
        self.function = self._code = Function(f"define i32 @{self.name}({_PARAMETERS})")
        self._many = self._code.slot("i64", "0")
        self._on = self._code.slot("i64", "0")
        self._first = self._code.slot("i64", "0")
        self._other = self._code.slot("i64", "0")

    @contextmanager
    def _each_on(self) -> Iterator[tuple[str, str]]:
        """The body for each lane that is on: its index, its address."""
        code = self._code
        with code.loop("%lanes") as index:
            masked = code.let("icmp ne ptr %mask, null")
            test, on, off = code.name("test"), code.name("on"), code.name("off")
            code.do(f"br i1 {masked}, label %{test}, label %{on}")
            code.start(test)
            bit = code.load("i8", code.at("%mask", "i8", index))
            code.do(f"br i1 {code.let(f'icmp ne i8 {bit}, 0')}, label %{on}, label %{off}")
            code.start(on)
            yield index, code.load("i64", code.at("%addresses", "i64", index))
            code.jump(off)
            code.start(off)

    def _count(self, wrong: str, address: str, other: str = "0") -> None:
        """One more lane on which something is wrong; the first one's address is kept."""
        code = self._code
        with code.when(wrong):
            many = code.load("i64", self._many)
            with code.when(code.let(f"icmp eq i64 {many}, 0")):
                code.store("i64", address, self._first)
                code.store("i64", other, self._other)
            code.add_to(self._many, "1")

    def _refuse(self, fault: Fault) -> None:
        """Return with a report if any lane was counted."""
        code = self._code
        many = code.load("i64", self._many)
        with code.when(code.let(f"icmp ne i64 {many}, 0"), leaves=True):
            self._told(fault, code.load("i64", self._first), many, code.load("i64", self._other))

    def _told(self, fault: Fault, address: str, many: str, other: str) -> None:
        code = self._code
        report = code.pointer(code.field("%context", Context.REPORT))
        region = code.let("ptrtoint ptr %region to i64")
        for place, value in (
            (Report.KIND, str(int(fault))),
            (Report.SITE, "%site"),
            (Report.ADDRESS, address),
            (Report.MANY, many),
            (Report.LANES, code.load("i64", self._on)),
            (Report.OTHER, other),
            (Report.REGION, region),
        ):
            code.store("i64", value, code.at(report, "i64", place))
        code.do("ret i32 1")

    def _offset(self, address: str) -> str:
        return self._code.let(f"sub i64 {address}, {self._code.field('%region', Region.STORAGE)}")

    def _both(self, *conditions: str) -> str:
        met = conditions[0]
        for condition in conditions[1:]:
            met = self._code.let(f"and i1 {met}, {condition}")
        return met
