"""Reads the runs of a time window from a store as observations, for all commands.

Every stored result becomes an `Observation` of a `TrackedItem`, whose key is the same each night.
Example: the cell of toggle 27460 on 0.5.18 that was `broken` on Monday is a FAILED observation of
the item `prove`, `0.5.18 cpu 27460 suites/…::test_rows`; `timelines` joins it with Sunday's.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable

import msgspec

from harness.core.outcomes import Outcome, RunStatus, Verdict
from harness.runs.history import run_summaries, time_window
from harness.runs.history.run_summaries import (
    AttemptSummary,
    CellSummary,
    EvaluationSummary,
    ReleaseSummary,
    make_evaluation_item,
    name_resource,
    select_packages,
)
from harness.runs.history.values import Observation, RunVersions, TrackedItem
from harness.store.database import Store
from harness.store.eval.table import EvalTable
from harness.store.fuzz.table import FuzzTable
from harness.store.fuzz.values import FuzzRun, FuzzTestResult
from harness.store.matrix.table import MatrixTable
from harness.store.matrix.values import FAILURES, INCONCLUSIVE_OUTCOMES, MatrixRun
from harness.store.mutate.table import MutationTable
from harness.store.mutate.values import NO_EVIDENCE_OUTCOMES, FaultResult, MutationRun
from harness.store.prove.table import ProveTable
from harness.store.prove.values import ProveRun

OK, FAILED = Verdict.PASSES, Verdict.FAILS
KNOWN_BUG = Verdict.HAS_BUG
FLAKY, SILENT = Verdict.FLAKY, Verdict.CANNOT_TELL
MAX_MESSAGE_LENGTH = 300


class WindowRun(msgspec.Struct):
    """A run that started within the window."""

    id: str
    night: datetime.date
    started_at: float
    completed: bool


class ObservationReader:
    """Reads all observations of a store since a moment."""

    def __init__(self, store: Store, since: datetime.datetime, now: datetime.datetime) -> None:
        self.store = store
        self.since = since
        self.now = now
        self.items: dict[tuple[str, str], TrackedItem] = {}
        self.observations: dict[tuple[str, str], list[tuple[datetime.date, Observation]]] = {}
        self.runs: list[WindowRun] = []
        self.notes: list[str] = []
        self._versions_by_commit: dict[tuple[str, str], RunVersions] = {}
        self._read_all()

    def _read_all(self) -> None:
        for run in ProveTable(self.store).list_runs():
            if window_run := self._admit_run(run.id, run.started, run.status):
                self._read_proof(run, window_run)
        for matrix in MatrixTable(self.store).list_runs():
            if window_run := self._admit_run(matrix.id, matrix.started, matrix.status):
                self._read_matrix(matrix, window_run)
        for listed in EvalTable(self.store).list_runs():
            if window_run := self._admit_run(listed.id, listed.started, listed.status):
                for _, evaluation in EvalTable(self.store).load_owned_items(
                    listed.id, "evaluation", EvaluationSummary
                ):
                    self._read_evaluation(evaluation, window_run)
        self._read_fuzzing(
            [
                (fuzz, window_run)
                for fuzz in FuzzTable(self.store).list_runs()
                if (window_run := self._admit_run(fuzz.id, fuzz.started, fuzz.status))
            ]
        )
        for mutation in MutationTable(self.store).list_runs():
            if window_run := self._admit_run(mutation.id, mutation.started, mutation.status):
                self._read_mutation(MutationTable(self.store).load_whole(mutation), window_run)

    def _admit_run(self, run_id: str, started: str | float, status: str) -> WindowRun | None:
        """Admit a run that started within the window; an impossible start becomes a note."""
        moment = time_window.parse_started(started)
        if moment is None:
            self.notes.append(f"the start of {run_id} is '{started}', which is no time: left out")
            return None
        if moment > self.now + time_window.MAX_CLOCK_SKEW:
            text = moment.astimezone(datetime.UTC).isoformat(sep=" ", timespec="minutes")
            self.notes.append(f"{run_id} began in the future ({text}): a clock is wrong; left out")
            return None
        if moment < self.since:
            return None
        night = time_window.night_from_moment(moment)
        self.runs.append(WindowRun(run_id, night, moment.timestamp(), status is RunStatus.FINISHED))
        return self.runs[-1]

    def _observe(
        self,
        item: TrackedItem,
        window_run: WindowRun,
        outcome: Verdict,
        versions: RunVersions,
        message: str = "",
        seconds: float = 0.0,
        device_seconds: float = 0.0,
    ) -> None:
        # The time is that of the run: an attempt may have run on a machine with another clock.
        observation = Observation(
            *(window_run.started_at, window_run.id, outcome, versions),
            *(message[:MAX_MESSAGE_LENGTH], seconds, device_seconds),
        )
        key = item.kind, item.key
        self.items[key] = item
        self.observations.setdefault(key, []).append((window_run.night, observation))

    # Proofs and lifecycles

    def _read_proof(self, run: ProveRun, window_run: WindowRun) -> None:
        unfix = str(run.settings.get("commit", ""))
        versions, devices = {}, {}
        for _, on in ProveTable(self.store).load_owned_items(run.id, "releases", ReleaseSummary):
            key = on.release, on.device
            versions[key] = RunVersions(on.release, unfix, select_packages(on.versions))
            devices[key] = name_resource(on.device, str(on.machine.get("gpu", "")))
            self._add_collection(run, on, window_run, versions[key], devices[key])
        for cell in run_summaries.read_cells(self.store, run.id):
            if cell.verdict is not None:
                key = cell.release, cell.device
                cell_versions = versions.get(key, RunVersions(cell.release, unfix))
                device = devices.get(key, cell.device)
                self._add_cell(run, cell, cell.verdict, window_run, cell_versions, device)

    def _add_collection(
        self,
        run: ProveRun,
        on: ReleaseSummary,
        window_run: WindowRun,
        versions: RunVersions,
        device: str,
    ) -> None:
        """Observe the item for starting a release and collecting all guards."""
        problems = [*on.problems, *(f"no guard names {name}" for name in on.unguarded or ())]
        item = TrackedItem(
            *(run.kind, f"{on.release} {on.device} collected"),
            f"everything collected on {on.release}, {on.device}",
            *(on.release, device),
        )
        outcome = FAILED if problems else OK
        message = "; ".join(problems)
        self._observe(item, window_run, outcome, versions, message, on.seconds_to_start)

    def _add_cell(
        self,
        run: ProveRun,
        cell: CellSummary,
        verdict: Verdict,
        window_run: WindowRun,
        versions: RunVersions,
        device: str,
    ) -> None:
        outcome = OK if verdict.is_good else FAILED
        if verdict is Verdict.NA:
            outcome = SILENT
        elif verdict is Verdict.FLAKY or (verdict.is_good and cell.first_attempt):
            outcome = FLAKY
        reason = cell.first_attempt or cell.headline or cell.why
        message = f"{verdict}: {reason}" if reason else str(verdict)
        name = cell.guard.partition("::")[2] or cell.guard
        item = TrackedItem(
            kind=run.kind,
            key=f"{cell.release} {cell.device} {cell.toggle} {cell.guard}",
            title=f"{cell.toggle}: {name.removeprefix('test_')} on {cell.release}, {cell.device}",
            release=cell.release,
            device=device,
            details=(("toggle", cell.toggle), ("guard", cell.guard), ("on", cell.device)),
        )
        self._observe(
            *(item, window_run, outcome, versions, "" if outcome is OK else message),
            seconds=cell.seconds,
            device_seconds=0.0 if device == "cpu" else cell.seconds,
        )

    # Matrix runs

    def _read_matrix(self, run: MatrixRun, window_run: WindowRun) -> None:
        attempts_by_cell: dict[str, list[AttemptSummary]] = {}
        for cell, attempt in MatrixTable(self.store).load_owned_items(
            run.id, "attempts", AttemptSummary
        ):
            attempts_by_cell.setdefault(cell, []).append(attempt)
        for cell, attempts in attempts_by_cell.items():
            if attempts[-1].last:  # else the run was stopped before the cell was run again
                self._add_matrix_cell(run, cell, attempts, window_run)

    def _add_matrix_cell(
        self, run: MatrixRun, cell: str, attempts: list[AttemptSummary], window_run: WindowRun
    ) -> None:
        last = attempts[-1]
        item = self.items.get(("matrix", f"{run.name} {cell}")) or self._make_cell_item(run, cell)
        failed = [attempt for attempt in attempts if attempt.outcome in FAILURES]
        outcome = FLAKY if failed else OK
        if last.outcome is not Outcome.PASSED:
            outcome = SILENT if last.outcome in INCONCLUSIVE_OUTCOMES else FAILED
        shown = failed[0] if failed else last
        self._observe(
            *(item, window_run, outcome, self._share_versions(item.release, run.commit)),
            message="" if outcome is OK else f"{shown.outcome}: {shown.how}",
            seconds=sum(attempt.seconds for attempt in attempts),
            device_seconds=sum(attempt.device_seconds for attempt in attempts),
        )

    def _share_versions(self, release: str, commit: str) -> RunVersions:
        """Share one value between cells: a month has a hundred thousand cells."""
        return self._versions_by_commit.setdefault((release, commit), RunVersions(release, commit))

    def _make_cell_item(self, run: MatrixRun, identity: str) -> TrackedItem:
        cell = MatrixTable(self.store).load_cell(run.id, identity)
        values = ", ".join(f"{axis} {value}" for axis, value in cell.values.items())
        return TrackedItem(
            *("matrix", f"{run.name} {identity}", f"{run.name}: {values}"),
            cell.values.get("release", ""),
            cell.values.get("device", ""),
            (*cell.values.items(), ("what runs", cell.work), ("cell", identity)),
        )

    # Evaluations

    def _read_evaluation(self, evaluation: EvaluationSummary, window_run: WindowRun) -> None:
        device = name_resource(evaluation.device, evaluation.machine.get("gpu", ""))
        packages = select_packages(evaluation.machine)
        planted = {fault.served for fault in evaluation.faults}
        current = evaluation.machine.get("sglang", "current")
        releases = {
            each.name: current if each.release == "current" else each.release
            for each in evaluation.served
        }

        def observe(
            subject: str,
            name: str,
            release: str,
            outcome: Verdict,
            message: str,
            base: str = "",
            seconds: float = 0.0,
        ) -> None:
            item = make_evaluation_item(evaluation, subject, name, release, device, base)
            versions = RunVersions(release, evaluation.machine.get("unfix", ""), packages)
            device_seconds = 0.0 if device == "cpu" else seconds
            self._observe(item, window_run, outcome, versions, message, seconds, device_seconds)

        for served in evaluation.served:
            if served.name not in planted:
                problem = served.problem
                outcome = SILENT if served.absent else FAILED if problem else OK
                seconds = served.ready + served.seconds
                message = problem or served.absent
                release = releases[served.name]
                observe("served", served.name, release, outcome, message, seconds=seconds)
        for compared in evaluation.compared:
            if compared.candidate not in planted:
                verdict = compared.verdict
                outcome = OK if verdict.is_good else FAILED
                if verdict in (Verdict.NA, Verdict.CANNOT_TELL):
                    outcome = SILENT
                subject = f"{compared.kind} {compared.task}".strip() + " of"
                message = f"{verdict}: {compared.words.removeprefix(f'{verdict}: ')}"
                release = releases.get(compared.candidate, "")
                message = "" if outcome is OK else message
                observe(subject, compared.candidate, release, outcome, message, compared.base)
        for fault in evaluation.faults:
            if fault.expected:
                outcome = SILENT if fault.absent else OK if fault.caught else FAILED
                reason = fault.absent or fault.unconfirmed
                message = reason or "a planted fault that was not noticed"
                subject = f"{fault.toggle} noticed in"
                message = "" if fault.caught else message
                release = releases.get(fault.served, "")
                observe(subject, fault.configuration, release, outcome, message)

    # Fuzzing

    def _read_fuzzing(self, runs: Iterable[tuple[FuzzRun, WindowRun]]) -> None:
        """Observe failures by name; one that a later search does not find again is ok.

        A search tries the stored example first, if the corpus still exists.
        """
        runs = list(runs)
        known: dict[tuple[str, str, str], dict[str, TrackedItem]] = {}
        for run, _ in runs:
            for failure in run.failures:
                key = failure.repro.test, failure.repro.release, str(run.under)
                known.setdefault(key, {})[failure.name] = TrackedItem(
                    *("fuzz", failure.name, failure.name, failure.repro.release, "cpu"),
                    (("test", failure.repro.test), *run.under),
                )
        for run, window_run in runs:
            for test in run.tests:
                items = known.get((test.test, test.release, str(run.under)), {})
                self._add_fuzzed_test(run, test, window_run, items)
            self._add_fuzz_problems(run, window_run)

    def _add_fuzzed_test(
        self,
        run: FuzzRun,
        test: FuzzTestResult,
        window_run: WindowRun,
        items: dict[str, TrackedItem],
    ) -> None:
        failures = {failure.name: failure for failure in run.failures}
        versions = RunVersions(test.release, run.commit)
        unsearched = test.left_out or ("" if test.examples else "no example was run")
        outcome = SILENT if unsearched else OK
        failing = [name for name in items if name in failures]
        if not failing:
            under = "".join(f" {direction} {toggle}" for toggle, direction in run.under)
            name = test.test.partition("::")[2].removeprefix("test_") or test.test
            item = TrackedItem(
                *("fuzz", f"{test.release} {test.test}{under}", f"{name} on {test.release}{under}"),
                *(test.release, "cpu", (("test", test.test), *run.under)),
            )
            message = unsearched or f"nothing found in {test.examples} examples"
            self._observe(item, window_run, outcome, versions, message, test.seconds)
        for name, item in items.items():
            if name in failures:
                seconds = test.seconds if name == failing[0] else 0.0
                message, known = failures[name].repro.headline, ", ".join(failures[name].known)
                if known:
                    message = f"{test.release} has the bug of {known}: {message}"
                found = KNOWN_BUG if known else FAILED
                self._observe(item, window_run, found, versions, message, seconds)
            else:
                message = unsearched or f"not found again in {test.examples} examples"
                self._observe(item, window_run, outcome, versions, message)

    def _add_fuzz_problems(self, run: FuzzRun, window_run: WindowRun) -> None:
        """Observe an item for each release, which fails if suites could not be fuzzed."""
        for release in dict.fromkeys(test.release for test in run.tests):
            problems = [text for text in run.problems if text.startswith(f"SGLang {release}:")]
            item = TrackedItem(
                "fuzz", f"{release} whole", f"all of the suites on {release}", release, "cpu"
            )
            outcome = FAILED if problems else OK
            versions = RunVersions(release, run.commit)
            self._observe(item, window_run, outcome, versions, "; ".join(problems))

    # Mutation runs

    def _read_mutation(self, run: MutationRun, window_run: WindowRun) -> None:
        """Observe each fault; one that was killed once and survives now shows a weaker suite."""
        unfix = str(run.settings.get("commit", ""))
        versions = RunVersions(run.release, unfix, select_packages(run.versions))
        for result in run.fates:
            fault = result.fault
            item = TrackedItem(
                *("mutate", f"{run.release} {fault.id}"),
                f"{fault.id} in {fault.target} on {run.release}: {fault.words}",
                *(run.release, "cpu"),
                (("fault", fault.id), ("target", fault.target), ("operator", fault.operator)),
            )
            outcome, message = _judge_fault(result)
            self._observe(item, window_run, outcome, versions, message, result.seconds)
        whole = TrackedItem(
            *("mutate", f"{run.release} whole", f"all guards without a fault on {run.release}"),
            *(run.release, "cpu"),
        )
        outcome = FAILED if run.recorded_problems else OK
        seconds = run.seconds_to_start + run.seconds_to_reach
        message = "; ".join(run.recorded_problems)
        self._observe(whole, window_run, outcome, versions, message, seconds)


def _judge_fault(result: FaultResult) -> tuple[Verdict, str]:
    message = f"{result.fate}: {result.fault.words}"
    if result.is_disproved_equivalent:
        return FAILED, f"listed as equal, and {result.by} kills it"
    if result.fate is Verdict.SURVIVED or result.fate in NO_EVIDENCE_OUTCOMES:
        return FAILED, message
    return (OK, "") if result.fate is Verdict.KILLED else (SILENT, message)
