"""One kernel, read and audited in each mode of its launches.

A kernel may be launched in several modes: with a bias or without, with flags on or off. Each mode
compiles to a graph of its own. Modes of recorded launches come first. Modes from the host's code
follow, where an open flag is tried as true and as false. Of the findings on one line, the one that
needs the smallest share of a limit counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.core.outcomes import Verdict
from harness.runs.audit import overflow_runs, overrun_runs, parameter_inference
from harness.runs.audit.findings import (
    CONFIRMED,
    AuditFinding,
    KernelAudit,
    judge_kernel,
    split_findings,
)
from harness.runs.audit.host_scope import HostLaunch
from harness.runs.audit.kernel_case import KernelCase
from harness.runs.audit.kernel_discovery import SourceKernel
from harness.runs.audit.kernel_graphs import iterate_guesses, read_graph
from harness.runs.audit.lazy_release import LazyModule, LazyRelease
from harness.runs.audit.parameter_inference import AssumedParameter
from harness.runs.audit.recorded_sizes import RecordedSizes
from harness.runs.audit.size_limits import SizeLimits
from harness.runs.audit.threshold_search import find_overflow_findings
from harness.sanitizer.ir.graph import FileLine

_MAX_RECORDED_LAUNCHES = 4  # modes of one kernel
_MAX_LAUNCH_SITES = 2
_MAX_ERROR_LENGTH = 160


@dataclass(slots=True)
class KernelReading:
    """One kernel in all modes, with the findings so far."""

    findings: dict[FileLine, AuditFinding] = field(default_factory=dict)
    overruns: dict[FileLine, AuditFinding] = field(default_factory=dict)
    reasons: set[str] = field(default_factory=set)
    cases: list[tuple[Any, KernelCase]] = field(default_factory=list)  # each with the loaded kernel
    error: str = ""  # Triton's first error
    recorded_lines: set[FileLine] = field(default_factory=set)  # lines of recorded findings

    @property
    def accesses(self) -> int:
        return max((len(case.access_graph.accesses) for _, case in self.cases), default=0)

    def add_finding(self, finding: AuditFinding, is_recorded: bool) -> None:
        self.findings[finding.line_key] = finding
        if is_recorded:
            self.recorded_lines.add(finding.line_key)

    def is_nearer(self, finding: AuditFinding, is_recorded: bool) -> bool:
        """Return whether a finding replaces the present one of its line."""
        earlier = self.findings.get(finding.line_key)
        if earlier is None:
            return True
        if earlier.confirmed == CONFIRMED:
            return False
        is_guess = not is_recorded and finding.line_key in self.recorded_lines
        return is_guess or finding.nearness < earlier.nearness


def get_module(release: LazyRelease, kernel: SourceKernel) -> LazyModule:
    module = release.find_module(kernel.module)
    assert module is not None
    return module


def iterate_cases(
    release: LazyRelease, kernel: SourceKernel, limits: SizeLimits, reading: KernelReading
) -> Iterator[KernelCase]:
    """Iterate the modes of a kernel that Triton accepts, and add them to the reading."""
    module = get_module(release, kernel)
    loaded = release.load_kernel(kernel.module, kernel.name)

    def read_case(
        parameters: list[AssumedParameter], launch: HostLaunch | None, known: SizeLimits = limits
    ) -> KernelCase | None:
        try:
            case = KernelCase(read_graph(loaded, parameters), parameters, launch, known)
        except Exception as error:  # Triton may raise any error for a mode that does not fit
            reading.error = reading.error or shorten_error(error)
            return None
        reading.cases.append((loaded, case))
        return case

    if not limits.quantities:  # nothing is guessed
        for mode in kernel.recorded_launches[:_MAX_RECORDED_LAUNCHES]:
            sizes = RecordedSizes(mode)
            launched = sizes.make_launch(module.path, kernel.node.lineno)
            case = read_case(sizes.make_parameters(), launched, sizes.make_limits(limits))
            if case is not None:
                yield case
        if not kernel.recorded_launches:
            reading.reasons.add("no launch of it is recorded")
        return
    tried: list[list[AssumedParameter]] = []
    launches: Sequence[HostLaunch | None] = kernel.launches[:_MAX_LAUNCH_SITES] or (None,)
    for recorded in _iterate_recorded_parameters(module, kernel, launches[0], limits):
        case = read_case(recorded, launches[0])
        if case is not None:
            tried.append(recorded)
            yield case
    for launch in launches:
        for flags in (True, False):
            parameters = parameter_inference.infer_parameters(
                module, kernel.node, launch, limits, flags
            )
            if parameters in tried:
                continue
            tried.append(parameters)
            for guess in iterate_guesses(parameters):
                case = read_case(guess, launch)
                if case is not None:
                    reading.reasons |= parameter_inference.describe_unread_constants(parameters)
                    yield case
                    break


def _iterate_recorded_parameters(
    module: LazyModule, kernel: SourceKernel, launch: HostLaunch | None, limits: SizeLimits
) -> Iterator[list[AssumedParameter]]:
    """Iterate the modes that were recorded, with the host's words for their numbers."""
    inferred = parameter_inference.infer_parameters(module, kernel.node, launch, limits, True)
    for mode in kernel.recorded_launches[:_MAX_RECORDED_LAUNCHES]:
        parameters = parameter_inference.apply_recorded_launch(inferred, mode)
        if parameters is not None:
            yield parameters


def analyze_kernel(release: LazyRelease, kernel: SourceKernel, limits: SizeLimits) -> KernelReading:
    """Audit a kernel in all modes."""
    reading = KernelReading()
    for case in iterate_cases(release, kernel, limits, reading):
        overflows, reasons = find_overflow_findings(case, kernel.module)
        reading.reasons |= reasons
        is_recorded = case.is_recorded_launch
        nearer = [
            (finding, loads)
            for finding, loads in overflows
            if reading.is_nearer(finding, is_recorded)
        ]
        loaded, _ = reading.cases[-1]
        for finding in overflow_runs.confirm_findings(loaded, case, nearer):
            reading.add_finding(finding, is_recorded)
        for finding in overrun_runs.find_overruns(loaded, case, kernel.module):
            reading.overruns.setdefault(finding.line_key, finding)
    if not reading.accesses and reading.error:
        refused = "Triton does not take the arguments that are guessed"
        reading.reasons.add(f"{refused}: {reading.error}")
    return reading


def judge_reading(
    release: LazyRelease, kernel: SourceKernel, reading: KernelReading
) -> KernelAudit:
    findings, reasons = split_findings(
        [*reading.findings.values(), *reading.overruns.values()], reading.reasons
    )
    return KernelAudit(
        kernel.name, kernel.module, get_module(release, kernel).path, kernel.node.lineno,
        judge_kernel(findings, reasons), reading.accesses, findings, reasons,
    )  # fmt: skip


def make_unknown_audit(release: LazyRelease, kernel: SourceKernel, reason: str) -> KernelAudit:
    module = release.find_module(kernel.module)
    path = module.path if module is not None else ""
    return KernelAudit(
        kernel.name, kernel.module, path, kernel.node.lineno, Verdict.CANNOT_TELL, 0,
        reasons=(reason,),
    )  # fmt: skip


def make_helper_audit(release: LazyRelease, kernel: SourceKernel) -> KernelAudit:
    """Make the record of a function that kernels call; its callers decide its verdict."""
    return KernelAudit(
        kernel.name, kernel.module, get_module(release, kernel).path, kernel.node.lineno,
        Verdict.SAFE, 0, helper_of=",".join(sorted(kernel.callers)),
        last=kernel.node.end_lineno or 0,
    )  # fmt: skip


def shorten_error(error: BaseException) -> str:
    """Shorten an error to the last line of its first cause, which has Triton's message."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" ^")]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:_MAX_ERROR_LENGTH]
