"""A report of a CUDA kernel that ran on a GPU, as a violation with the executor's words."""

from __future__ import annotations

from dataclasses import dataclass

from harness.sanitizer.check.violations import (
    DataRace,
    IntegerOverflow,
    KernelLocation,
    OutOfBounds,
    UninitializedMemory,
    Violation,
)
from harness.sanitizer.gpu.program_grid import unpack_grid_shape, unravel_program
from harness.sanitizer.gpu.report_assembly import OVERFLOW_MASK, ReportBit
from harness.sanitizer.gpu.report_buffer import DeviceReport
from harness.sanitizer.gpu.shadow_entries import FLAG_BITS, PROGRAM_BITS
from harness.sanitizer.ir.graph import SourceLocation
from harness.sanitizer.ptx.abi import PtxViolationKind
from harness.sanitizer.ptx.instrumented_kernel import InstrumentedKernel, InstrumentedSite
from harness.sanitizer.ptx.launch import Allocation
from harness.sanitizer.ptx.reports import (
    PAST_TENSE,
    RACES,
    describe_element,
    describe_line,
    describe_neighbour,
    describe_outside,
    locate_report,
    unravel_thread,
)

_RACES = {
    ReportBit.WRITE_WRITE_RACE: PtxViolationKind.WRITE_WRITE_RACE,
    ReportBit.ATOMIC_STORE_RACE: PtxViolationKind.ATOMIC_RACE,
    ReportBit.READ_AFTER_WRITE: PtxViolationKind.READ_AFTER_WRITE,
    ReportBit.WRITE_AFTER_READ: PtxViolationKind.WRITE_AFTER_READ,
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
        number = report.word & OVERFLOW_MASK
        if number:
            return self._build_overflow(report, site, self.kernel.overflows[number - 1])
        if report.word & ReportBit.UNINITIALIZED_READ:
            return self._build_uninitialized(report, site)
        race = next((kind for bit, kind in _RACES.items() if report.word & bit), None)
        if race is not None:
            return self._build_race(RACES[race], report, site)
        targets = [self.targets[root] for root in site.roots if root in self.targets]
        position = f"address {report.address:#x}, in no tensor that this launch was given"
        if targets:
            nearest = min(targets, key=lambda target: _measure_distance(report.address, target))
            ends = nearest.base, nearest.end
            position = describe_outside(report.address, site.size, ends, nearest.name, nearest)
        neighbour = describe_neighbour(report.address, self.targets.values())
        return OutOfBounds(
            f"{self.name} {PAST_TENSE[site.label]} {position}",
            self._locate(report, site),
            (f"{site.text} of {site.size} bytes", *neighbour, *self._list()),
        )

    def _locate(self, report: DeviceReport, site: InstrumentedSite) -> KernelLocation:
        thread = unravel_thread(report.thread, report.block_sides)
        return locate_report(self.name, _to_source(site), report.program, thread)

    def _build_overflow(
        self, report: DeviceReport, site: InstrumentedSite, overflow: InstrumentedSite
    ) -> Violation:
        true, wrapped = report.operands
        details = []
        if true != wrapped and overflow.size:
            details.append(f"{true} became {wrapped} in 32 bits ({overflow.text})")
        details.append(f"{site.label} through that address at {describe_line(_to_source(site))}")
        return IntegerOverflow(
            f"{self.name}: an integer overflows on its way into an address",
            self._locate(report, overflow),
            (*details, *self._list()),
        )

    def _build_uninitialized(self, report: DeviceReport, site: InstrumentedSite) -> Violation:
        return UninitializedMemory(
            f"{self.name} {PAST_TENSE[site.label]} uninitialized memory: "
            f"{self._describe_element(report, site)}",
            self._locate(report, site),
            self._list(),
        )

    def _build_race(self, words: str, report: DeviceReport, site: InstrumentedSite) -> Violation:
        entry, sides = report.operands
        number = entry >> FLAG_BITS & ((1 << PROGRAM_BITS) - 1)
        other = unravel_program(number, unpack_grid_shape(sides))
        one = f"block {other}" if other is not None else "another block"
        race = words.format(one=one, two=f"block {report.program}")
        return DataRace(
            f"{self.name}: {race} {self._describe_element(report, site)}, without an order",
            self._locate(report, site),
            self._list(),
        )

    def _describe_element(self, report: DeviceReport, site: InstrumentedSite) -> str:
        targets = [self.targets[root] for root in site.roots if root in self.targets]
        inside = [target for target in targets if target.base <= report.address < target.end]
        if not inside:
            return f"address {report.address:#x}"
        return describe_element(report.address - inside[0].base, inside[0].name, inside[0])

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
