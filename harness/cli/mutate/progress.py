"""The progress of a mutation run on stderr."""

from __future__ import annotations

from harness.cli.progress_display import ProgressBars
from harness.core.outcomes import Verdict
from harness.core.wording import format_count
from harness.runs.mutate.line_coverage import GuardCoverage
from harness.runs.mutate.listener import MutationListener
from harness.runs.mutate.messages import MutationWorkerReady
from harness.store.mutate.values import NO_EVIDENCE_OUTCOMES, FaultResult, MutationRun


class MutateProgress(ProgressBars, MutationListener):
    """A listener that shows a bar on a terminal, and lines in a log."""

    def __init__(self, mutation: MutationRun) -> None:
        self.mutation = mutation
        super().__init__()
        self.task = self.bar.add_task(f"SGLang {mutation.release}: importing", total=None)

    def report_start(self, release: str) -> None:
        if self.bar.disable:
            self.print_line(f"SGLang {release}: importing; {self.mutation.planned} faults")

    def report_ready(self, ready: MutationWorkerReady, recorded_guards: int) -> None:
        guards, unknown = len(ready.guards), len(ready.guards) - recorded_guards
        left = f"; the lines of {unknown} are recorded, once for all runs" if unknown else ""
        if unknown and self.mutation.settings.get("suite") == []:
            left += ": `--suite NAME` takes the guards of one suite alone"
        self.print_line(
            f"SGLang {ready.release}: ready in {ready.seconds:.0f} s; "
            f"{format_count(guards, 'guard')}{left}"
        )

    def report_coverage(self, coverage: GuardCoverage, done_count: int, guard_count: int) -> None:
        self.bar.update(
            self.task, description="guards recorded", completed=done_count, total=guard_count
        )

    def report_own_suites(self, decided: int, fault_count: int) -> None:
        rest = fault_count - decided
        then = f"; {rest} left for the guards of all suites" if rest else ""
        self.print_line(f"the suites of their family kill {decided} of {fault_count} faults{then}")

    def report_result(self, mutation: MutationRun, result: FaultResult) -> None:
        done, planned = len(mutation.fates), mutation.planned
        self.bar.update(self.task, description="faults", completed=done, total=planned)
        unkilled = (Verdict.SURVIVED, *NO_EVIDENCE_OUTCOMES)
        if result.fate in unkilled or result.longer or result.is_disproved_equivalent:
            fault, longer = result.fault, " after a longer look" if result.longer else ""
            where = f"{fault.target}:{fault.line}"
            self.print_line(f"{result.fate.value}{longer}: {fault.id} {where} {fault.words}")

    def report_problem(self, text: str) -> None:
        self.print_line(text)
