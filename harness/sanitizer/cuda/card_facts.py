"""The facts of a violation that a CUDA kernel with checks reported on a GPU."""

from __future__ import annotations

from dataclasses import dataclass

from harness.sanitizer.gpu.program_grid import find_entrys_program
from harness.sanitizer.gpu.report_buffer import DeviceReport
from harness.sanitizer.ir.graph import SourceLocation
from harness.sanitizer.ptx.cuda_facts import (
    CudaFacts,
    describe_neighbour,
    describe_wrap,
    unravel_thread,
)
from harness.sanitizer.ptx.instrumented_kernel import InstrumentedKernel, InstrumentedSite
from harness.sanitizer.ptx.launch import Allocation, Dimensions
from harness.sanitizer.violations.kinds import OVERFLOW_MASK, read_kind
from harness.sanitizer.violations.named_memory import NamedMemory, describe_unknown
from harness.sanitizer.violations.sentences import build_violation


@dataclass(frozen=True, slots=True)
class CardLaunch:
    """A launch as its reports need it; it holds no tensor."""

    name: str
    kernel: InstrumentedKernel
    targets: dict[int, Allocation]  # by the offset of the pointer among the parameters
    call: str  # the host function that launched it, or "code that is no host call"
    server_phase: str = ""

    def build_violation(self, report: DeviceReport) -> Exception:
        return build_violation(_CardFacts(self, report))


class _CardFacts(CudaFacts):
    def __init__(self, launch: CardLaunch, report: DeviceReport) -> None:
        self._launch, self._report = launch, report
        site = launch.kernel.sites[report.site]
        self.kernel, self.kind = launch.name, read_kind(report.word)
        self.verb, self.instruction, self.source = site.label, site.text, _to_source(site)
        self.size, self.address, self.block = site.size, report.address, report.program
        self.thread = unravel_thread(report.thread, report.block_sides)
        self._targets = [launch.targets[root] for root in site.roots if root in launch.targets]

    @property
    def memory(self) -> NamedMemory | None:
        inside = (one for one in self._targets if one.base <= self.address < one.end)
        target = next(inside, None)
        return None if target is None else target.memory

    @property
    def known_element(self) -> str:
        return ""  # an access that overflowed may point into any tensor

    @property
    def place(self) -> str:
        if not self._targets:
            return describe_unknown(self.address)
        nearest = min(self._targets, key=self._measure_distance)
        return nearest.memory.describe_outside(self.address, self.size)

    def _measure_distance(self, target: Allocation) -> int:
        return max(target.base - self.address, self.address - target.end, 0)

    @property
    def neighbour(self) -> str:
        return describe_neighbour(self.address, self._launch.targets.values())

    @property
    def other_program(self) -> Dimensions | None:
        return find_entrys_program(*self._report.operands)

    # Integer overflow

    @property
    def overflow_source(self) -> SourceLocation:
        return _to_source(self._overflow)

    @property
    def arithmetic(self) -> str:
        true, wrapped = self._report.operands
        if true == wrapped or not self._overflow.size:
            return ""
        return describe_wrap(true, wrapped, self._overflow.text)

    @property
    def _overflow(self) -> InstrumentedSite:
        return self._launch.kernel.overflows[(self._report.word & OVERFLOW_MASK) - 1]

    # The launch

    @property
    def launched(self) -> str:
        words = ", ".join(dict.fromkeys(map(str, self._launch.targets.values())))
        caller = f" by {self._launch.call}" if self._launch.call else ""
        return f"launched{caller} with {words}"

    @property
    def phase(self) -> str:
        return self._launch.server_phase


def _to_source(site: InstrumentedSite) -> SourceLocation:
    source: SourceLocation | None = None
    for file, line in reversed(site.lines):
        source = SourceLocation(file, line, 0, source)
    return source or SourceLocation()
