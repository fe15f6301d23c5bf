"""A report of a CUDA kernel that ran on a GPU, as a violation with the executor's words."""

from __future__ import annotations

from dataclasses import dataclass

from harness.kernels.check.violations import (
    DataRace,
    IntegerOverflow,
    OutOfBounds,
    UninitializedMemory,
    Violation,
)
from harness.kernels.gpu.program_grid import unpack_grid_shape, unravel_program
from harness.kernels.gpu.report_assembly import OVERFLOW_MASK, ReportBit
from harness.kernels.gpu.report_buffer import DeviceReport
from harness.kernels.gpu.shadow_entries import FLAG_BITS, PROGRAM_BITS
from harness.kernels.ir.graph import SourceLocation
from harness.kernels.ptx.instrumented_kernel import InstrumentedKernel, InstrumentedSite
from harness.kernels.ptx.launch import Allocation, Dimensions
from harness.kernels.ptx.reports import (
    PAST_TENSE,
    describe_line,
    describe_outside,
    item_size,
    locate_report,
)

_RACES = {
    ReportBit.WRITE_WRITE_RACE: "{one} and {two} write different values to",
    ReportBit.ATOMIC_STORE_RACE: "{one} and {two} store and update atomically",
    ReportBit.READ_AFTER_WRITE: "{one} writes and {two} reads",
    ReportBit.WRITE_AFTER_READ: "{one} reads and {two} writes",
}


@dataclass(frozen=True, slots=True)
class CardLaunch:
    """A launch as its reports need it; it holds no tensor."""

    name: str
    kernel: InstrumentedKernel
    targets: dict[int, Allocation]  # by the offset of the pointer among the parameters
    call: str  # the host function that launched it, or "code that is no host call"
    server_phase: str = ""

    def build_violation(self, report: DeviceReport) -> Violation:
        site = self.kernel.sites[report.site]
        width, height = report.block_sides
        thread = (
            report.thread % width,
            report.thread // width % height,
            report.thread // (width * height),
        )
        number = report.word & OVERFLOW_MASK
        if number:
            return self._build_overflow(report, site, self.kernel.overflows[number - 1], thread)
        if report.word & ReportBit.UNINITIALIZED_READ:
            return self._build_uninitialized(report, site, thread)
        race = next((words for bit, words in _RACES.items() if report.word & bit), None)
        if race is not None:
            return self._build_race(race, report, site, thread)
        targets = [self.targets[root] for root in site.roots if root in self.targets]
        position = f"address {report.address:#x}, in no tensor that this launch was given"
        if targets:
            nearest = min(targets, key=lambda one: _measure_distance(report.address, one))
            ends = nearest.base, nearest.end
            position = describe_outside(report.address, site.size, ends, nearest.name, nearest)
        return OutOfBounds(
            f"{self.name} {PAST_TENSE[site.label]} {position}",
            locate_report(self.name, _to_source(site), report.program, thread),
            (f"{site.text} of {site.size} bytes", *self._describe_neighbour(report), *self._list()),
        )

    def _build_overflow(
        self,
        report: DeviceReport,
        site: InstrumentedSite,
        overflow: InstrumentedSite,
        thread: tuple[int, int, int],
    ) -> Violation:
        true, wrapped = report.operands
        details = []
        if true != wrapped and overflow.size:
            details.append(f"{true} became {wrapped} in 32 bits ({overflow.text})")
        details.append(f"{site.label} through that address at {describe_line(_to_source(site))}")
        return IntegerOverflow(
            f"{self.name}: an integer overflows on its way into an address",
            locate_report(self.name, _to_source(overflow), report.program, thread),
            (*details, *self._list()),
        )

    def _build_uninitialized(
        self, report: DeviceReport, site: InstrumentedSite, thread: Dimensions
    ) -> Violation:
        return UninitializedMemory(
            f"{self.name} {PAST_TENSE[site.label]} uninitialized memory: "
            f"{self._describe_element(report, site)}",
            locate_report(self.name, _to_source(site), report.program, thread),
            self._list(),
        )

    def _build_race(
        self, words: str, report: DeviceReport, site: InstrumentedSite, thread: Dimensions
    ) -> Violation:
        entry, sides = report.operands
        number = entry >> FLAG_BITS & ((1 << PROGRAM_BITS) - 1)
        other = unravel_program(number, unpack_grid_shape(sides))
        one = f"block {other}" if other is not None else "another block"
        race = words.format(one=one, two=f"block {report.program}")
        return DataRace(
            f"{self.name}: {race} {self._describe_element(report, site)}, without an order",
            locate_report(self.name, _to_source(site), report.program, thread),
            self._list(),
        )

    def _describe_element(self, report: DeviceReport, site: InstrumentedSite) -> str:
        targets = [self.targets[root] for root in site.roots if root in self.targets]
        inside = [one for one in targets if one.base <= report.address < one.end]
        if not inside:
            return f"address {report.address:#x}"
        target, offset = inside[0], report.address - inside[0].base
        if target.dtype:
            return f"{target.name}, index {offset // item_size(target)}"
        return f"{target.name}, byte {offset}"

    def _describe_neighbour(self, report: DeviceReport) -> tuple[str, ...]:
        for other in self.targets.values():
            if other.base <= report.address < other.end:
                inside = report.address - other.base
                return (f"that address is in {other.name}, {inside} bytes into it",)
        return ()

    def _list(self) -> tuple[str, ...]:
        words = ", ".join(dict.fromkeys(map(str, self.targets.values())))
        launched = (
            f"launched by {self.call} with {words}" if self.call else f"launched with {words}"
        )
        return tuple(line for line in (launched, self.server_phase) if line)


def _measure_distance(address: int, target: Allocation) -> int:
    return max(target.base - address, address - target.end, 0)


def _to_source(site: InstrumentedSite) -> SourceLocation:
    source: SourceLocation | None = None
    for file, line in reversed(site.lines):
        source = SourceLocation(file, line, 0, source)
    return source or SourceLocation()
