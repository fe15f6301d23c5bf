"""From a store to observations: every run of the window, whatever command made it."""

from __future__ import annotations

import datetime
from collections.abc import Iterable

import msgspec

from harness.runs.history import run_summaries, time_window
from harness.runs.history.run_summaries import (
    AttemptSummary,
    CellSummary,
    EvaluationSummary,
    ReleaseSummary,
)
from harness.runs.history.values import Observation, ObservationOutcome, RunVersions, TrackedItem
from harness.store.database import Store
from harness.store.eval.values import ComparisonVerdict
from harness.store.fuzz.values import FuzzRun
from harness.store.matrix.values import AttemptOutcome as Ended
from harness.store.matrix.values import MatrixRun
from harness.store.mutate.values import FaultOutcome, MutationRun
from harness.store.prove.values import CellVerdict, ProveRun

MAX_MESSAGE_LENGTH = 300  # letters of what is said


class WindowRun(msgspec.Struct):
    """A run of the window."""

    id: str
    night: datetime.date
    started_at: float
    completed: bool  # came to its end


class ObservationReader:
    """Everything seen since a moment."""

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
        for run in self.store.prove.list_runs():
            if met := self._admit_run(run.id, run.started, run.status == "finished"):
                self._read_proof(run, met)
        for matrix in self.store.matrix.list_runs():
            if met := self._admit_run(matrix.id, matrix.started, matrix.status == "finished"):
                self._read_matrix(matrix, met)
        for listed in self.store.eval.list_runs():
            if met := self._admit_run(listed.id, listed.started, listed.status == "done"):
                summaries = self.store.eval.load_owned_items(
                    listed.id, "evaluation", EvaluationSummary
                )
                for _, summary in summaries:
                    self._read_evaluation(summary, met)
        searched = [
            (run, met)
            for run in self.store.fuzz.list_runs()
            if (met := self._admit_run(run.id, run.started, run.status == "finished"))
        ]
        self._read_fuzzing(searched)
        for mutation in self.store.mutate.list_runs():
            if met := self._admit_run(mutation.id, mutation.started, mutation.status == "finished"):
                self._read_mutation(self.store.mutate.load_whole(mutation), met)

    def _admit_run(self, name: str, started: str | float, completed: bool) -> WindowRun | None:
        """A run, if it is of the window."""
        moment = time_window.parse_started(started)
        if moment is None:
            self.notes.append(f"{name} says of its start '{started}', which is no time: left out")
            return None
        if moment > self.now + time_window.MAX_CLOCK_SKEW:
            told = moment.astimezone(datetime.UTC).isoformat(sep=" ", timespec="minutes")
            self.notes.append(f"{name} began in the future ({told}): a clock is wrong; left out")
            return None
        if moment < self.since:
            return None
        met = WindowRun(name, time_window.night_from_moment(moment), moment.timestamp(), completed)
        self.runs.append(met)
        return met

    def _add_observation(
        self, item: TrackedItem, window_run: WindowRun, observation: Observation
    ) -> None:
        where = item.kind, item.key
        self.items[where] = item
        self.observations.setdefault(where, []).append((window_run.night, observation))

    # Proofs and lives

    def _read_proof(self, run: ProveRun, window_run: WindowRun) -> None:
        unfix = str(run.settings.get("commit", ""))
        versions = {}
        devices = {}
        for _, on in self.store.prove.load_owned_items(run.id, "releases", ReleaseSummary):
            place = on.release, on.device
            versions[place] = RunVersions(on.release, unfix, select_packages(on.versions))
            devices[place] = name_resource(on.device, str(on.machine.get("gpu", "")))
            self._add_collection(run, on, window_run, versions[place], devices[place])
        for cell in run_summaries.read_cells(self.store, run.id):
            place = cell.release, cell.device
            if cell.verdict is not None:
                told = versions.get(place, RunVersions(cell.release, unfix))
                self._add_cell(run, cell, window_run, told, devices.get(place, cell.device))

    def _add_collection(
        self,
        run: ProveRun,
        release_summary: ReleaseSummary,
        window_run: WindowRun,
        versions: RunVersions,
        device: str,
    ) -> None:
        """That a release could be started and everything collected is a thing by itself."""
        wrong = [
            *release_summary.problems,
            *(f"no guard names {toggle}" for toggle in release_summary.unguarded or ()),
        ]
        thing = TrackedItem(
            *(run.kind, f"{release_summary.release} {release_summary.device} collected"),
            f"everything collected on {release_summary.release}, {release_summary.device}",
            *(release_summary.release, device),
        )
        outcome = ObservationOutcome.FAILED if wrong else ObservationOutcome.OK
        seconds = release_summary.seconds_to_start
        one = Observation(
            window_run.started_at,
            run.id,
            outcome,
            versions,
            "; ".join(wrong)[:MAX_MESSAGE_LENGTH],
            seconds,
        )
        self._add_observation(thing, window_run, one)

    def _add_cell(
        self,
        run: ProveRun,
        cell: CellSummary,
        window_run: WindowRun,
        versions: RunVersions,
        device: str,
    ) -> None:
        assert cell.verdict is not None
        verdict = cell.verdict
        outcome = ObservationOutcome.OK if verdict.is_good else ObservationOutcome.FAILED
        if verdict is CellVerdict.NA:
            outcome = ObservationOutcome.SILENT
        elif verdict is CellVerdict.FLAKY or (verdict.is_good and cell.first_attempt):
            outcome = ObservationOutcome.FLAKY
        words = ""
        if outcome is not ObservationOutcome.OK:
            told = cell.first_attempt or cell.headline or cell.why
            words = f"{verdict}: {told}" if told else str(verdict)
        name = cell.guard.partition("::")[2] or cell.guard
        thing = TrackedItem(
            kind=run.kind,
            key=f"{cell.release} {cell.device} {cell.toggle} {cell.guard}",
            title=f"{cell.toggle}: {name.removeprefix('test_')} on {cell.release}, {cell.device}",
            release=cell.release,
            device=device,
            details=(("toggle", cell.toggle), ("guard", cell.guard), ("on", cell.device)),
        )
        held = 0.0 if device == "cpu" else cell.seconds
        one = Observation(
            window_run.started_at,
            run.id,
            outcome,
            versions,
            words[:MAX_MESSAGE_LENGTH],
            cell.seconds,
            held,
        )
        self._add_observation(thing, window_run, one)

    def _share_versions(self, release: str, commit: str) -> RunVersions:
        """One value for all that ran with them."""
        found = self._versions_by_commit.get((release, commit))
        if found is None:
            found = self._versions_by_commit[release, commit] = RunVersions(release, commit)
        return found

    # The matrix

    def _read_matrix(self, run: MatrixRun, window_run: WindowRun) -> None:
        tried: list[AttemptSummary] = []
        before = ""
        for cell, attempt in self.store.matrix.load_owned_items(run.id, "attempts", AttemptSummary):
            if cell != before and tried:
                self._add_matrix_cell(run, before, tried, window_run)
                tried = []
            before = cell
            tried.append(attempt)
        if tried:
            self._add_matrix_cell(run, before, tried, window_run)

    def _add_matrix_cell(
        self, run: MatrixRun, cell: str, attempts: list[AttemptSummary], window_run: WindowRun
    ) -> None:
        last = attempts[-1]
        if not last.last:  # stopped before it was run again
            return
        key = "matrix", f"{run.name} {cell}"
        thing = self.items.get(key) or self._make_cell_item(run, cell)
        outcome = _OUTCOME_BY_ATTEMPT.get(last.outcome, ObservationOutcome.FAILED)
        versions = self._share_versions(thing.release, run.commit)
        words, seconds, device_seconds = "", last.seconds, last.device_seconds
        if len(attempts) > 1:
            seconds = sum(each.seconds for each in attempts)
            device_seconds = sum(each.device_seconds for each in attempts)
        if outcome is not ObservationOutcome.OK or len(attempts) > 1:
            failed = [each for each in attempts if each.outcome.is_failure]
            if failed and outcome is ObservationOutcome.OK:
                outcome = ObservationOutcome.FLAKY
            words = (
                ""
                if outcome is ObservationOutcome.OK
                else _describe_attempt(failed[0] if failed else last)
            )
        # The run says when; an attempt's own clock may be another machine's.
        one = Observation(
            window_run.started_at, run.id, outcome, versions, words, seconds, device_seconds
        )
        self._add_observation(thing, window_run, one)

    def _make_cell_item(self, run: MatrixRun, identity: str) -> TrackedItem:
        cell = self.store.matrix.load_cell(run.id, identity)
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
        unfix = evaluation.machine.get("unfix", "")
        known = select_packages(evaluation.machine)
        meant = {fault.served for fault in evaluation.faults}
        releases = {}
        for served in evaluation.served:
            release = served.release
            if release == "current":
                release = evaluation.machine.get("sglang", release)
            releases[served.name] = release
            if served.name in meant:
                continue
            errors = [answer.error for answer in served.answers if answer.error]
            words = served.failure or (f"{len(errors)} errors: {errors[0]}" if errors else "")
            if not (words or served.answers or served.absent):
                words = "it answered nothing, and nobody said why"
            outcome = (
                ObservationOutcome.SILENT
                if served.absent
                else ObservationOutcome.FAILED
                if words
                else ObservationOutcome.OK
            )
            took = served.ready + served.seconds
            self._add_observation(
                _make_evaluation_item(evaluation, "served", served.name, release, device),
                window_run,
                Observation(
                    *(
                        window_run.started_at,
                        evaluation.id,
                        outcome,
                        RunVersions(release, unfix, known),
                    ),
                    *(
                        (words or served.absent)[:MAX_MESSAGE_LENGTH],
                        took,
                        0.0 if device == "cpu" else took,
                    ),
                ),
            )
        for compared in evaluation.compared:
            if compared.candidate in meant:
                continue
            release = releases.get(compared.candidate, "")
            outcome = (
                ObservationOutcome.OK
                if compared.verdict.is_acceptable
                else ObservationOutcome.FAILED
            )
            if compared.verdict in (ComparisonVerdict.NA, ComparisonVerdict.CANNOT_TELL):
                outcome = ObservationOutcome.SILENT
            what = f"{compared.kind} {compared.task}".strip()
            thing = _make_evaluation_item(
                evaluation, f"{what} of", compared.candidate, release, device, compared.base
            )
            said = compared.words.removeprefix(f"{compared.verdict}: ")
            told = "" if outcome is ObservationOutcome.OK else f"{compared.verdict}: {said}"
            seen = Observation(
                window_run.started_at,
                evaluation.id,
                outcome,
                RunVersions(release, unfix, known),
                told[:MAX_MESSAGE_LENGTH],
            )
            self._add_observation(thing, window_run, seen)
        for fault in evaluation.faults:
            if fault.expected:
                release = releases.get(fault.served, "")
                outcome = ObservationOutcome.OK if fault.caught else ObservationOutcome.FAILED
                if fault.absent:
                    outcome = ObservationOutcome.SILENT
                words = "" if fault.caught else fault.absent or "put in on purpose, and not noticed"
                thing = _make_evaluation_item(
                    evaluation, f"{fault.toggle} noticed in", fault.configuration, release, device
                )
                versions = RunVersions(release, unfix, known)
                self._add_observation(
                    thing,
                    window_run,
                    Observation(window_run.started_at, evaluation.id, outcome, versions, words),
                )

    # Fuzzing

    def _read_fuzzing(self, runs: Iterable[tuple[FuzzRun, WindowRun]]) -> None:
        """A failure that does not come up again where its test was searched again counts as ok:
        its example is tried first each night, if the corpus was kept."""
        runs = list(runs)
        known: dict[tuple[str, str, str], dict[str, TrackedItem]] = {}
        for run, _ in runs:
            for failure in run.failures:
                place = failure.test, failure.release, str(run.under)
                known.setdefault(place, {})[failure.name] = TrackedItem(
                    *("fuzz", failure.name, failure.name, failure.release, "cpu"),
                    (("test", failure.test), *run.under),
                )
        for run, met in runs:
            self._add_fuzz_run(run, met, known)

    def _add_fuzz_run(
        self,
        run: FuzzRun,
        window_run: WindowRun,
        known_items: dict[tuple[str, str, str], dict[str, TrackedItem]],
    ) -> None:
        failed = {failure.name: failure for failure in run.failures}
        for test in run.tests:
            versions = RunVersions(test.release, run.commit)
            things = known_items.get((test.test, test.release, str(run.under)), {})
            quiet = test.left_out or ("" if test.examples else "no example was run")
            name = test.test.partition("::")[2].removeprefix("test_") or test.test
            under = "".join(f" {direction} {toggle}" for toggle, direction in run.under)
            whole = TrackedItem(
                *("fuzz", f"{test.release} {test.test}{under}", f"{name} on {test.release}{under}"),
                *(test.release, "cpu", (("test", test.test), *run.under)),
            )
            if not set(things) & set(failed):
                outcome = ObservationOutcome.SILENT if quiet else ObservationOutcome.OK
                words = quiet or f"nothing found in {test.examples} examples"
                self._add_observation(
                    whole,
                    window_run,
                    Observation(
                        window_run.started_at, run.id, outcome, versions, words, test.seconds
                    ),
                )
            for name, thing in things.items():
                if name in failed:
                    outcome, words = ObservationOutcome.FAILED, failed[name].headline
                else:
                    outcome = ObservationOutcome.SILENT if quiet else ObservationOutcome.OK
                    words = quiet or f"not found again in {test.examples} examples"
                first = name == next((each for each in things if each in failed), None)
                seconds = test.seconds if first else 0.0
                self._add_observation(
                    thing,
                    window_run,
                    Observation(
                        window_run.started_at,
                        run.id,
                        outcome,
                        versions,
                        words[:MAX_MESSAGE_LENGTH],
                        seconds,
                    ),
                )
        self._add_fuzz_problems(run, window_run)

    def _add_fuzz_problems(self, run: FuzzRun, window_run: WindowRun) -> None:
        """What could not be fuzzed is a thing of its own, on each release."""
        for release in dict.fromkeys(test.release for test in run.tests):
            said = [text for text in run.problems if text.startswith(f"SGLang {release}:")]
            thing = TrackedItem(
                "fuzz", f"{release} whole", f"all of the suites on {release}", release, "cpu"
            )
            outcome = ObservationOutcome.FAILED if said else ObservationOutcome.OK
            words = "; ".join(said)[:MAX_MESSAGE_LENGTH]
            one = Observation(
                window_run.started_at, run.id, outcome, RunVersions(release, run.commit), words
            )
            self._add_observation(thing, window_run, one)

    # Faults

    def _read_mutation(self, run: MutationRun, window_run: WindowRun) -> None:
        """A fault that was killed once and survives now: a suite has become weaker."""
        unfix = str(run.settings.get("commit", ""))
        versions = RunVersions(run.release, unfix, select_packages(run.versions))
        for fated in run.fates:
            fault = fated.fault
            outcome = ObservationOutcome.SILENT
            if fated.is_disproved_equivalent or fated.fate is FaultOutcome.SURVIVED:
                outcome = ObservationOutcome.FAILED
            elif fated.fate is FaultOutcome.KILLED:
                outcome = ObservationOutcome.OK
            words = f"{fated.fate}: {fault.words}" if outcome is not ObservationOutcome.OK else ""
            if fated.is_disproved_equivalent:
                words = f"said to be equal, and {fated.by} kills it"
            thing = TrackedItem(
                *("mutate", f"{run.release} {fault.id}"),
                f"{fault.id} in {fault.target} on {run.release}: {fault.words}",
                *(run.release, "cpu"),
                (("fault", fault.id), ("target", fault.target), ("operator", fault.operator)),
            )
            seen = Observation(
                window_run.started_at,
                run.id,
                outcome,
                versions,
                words[:MAX_MESSAGE_LENGTH],
                fated.seconds,
            )
            self._add_observation(thing, window_run, seen)
        said = ObservationOutcome.FAILED if run.recorded_problems else ObservationOutcome.OK
        whole = TrackedItem(
            *("mutate", f"{run.release} whole", f"all guards without a fault on {run.release}"),
            *(run.release, "cpu"),
        )
        told = "; ".join(run.recorded_problems)[:MAX_MESSAGE_LENGTH]
        spent = run.seconds_to_start + run.seconds_to_reach
        self._add_observation(
            whole,
            window_run,
            Observation(window_run.started_at, run.id, said, versions, told, spent),
        )


_OUTCOME_BY_ATTEMPT = {
    Ended.GREEN: ObservationOutcome.OK,
    Ended.NOT_READY: ObservationOutcome.SILENT,
    Ended.LOST: ObservationOutcome.SILENT,
}


def _describe_attempt(attempt: AttemptSummary) -> str:
    return f"{attempt.outcome}: {attempt.how}"[:MAX_MESSAGE_LENGTH]


def _make_evaluation_item(
    evaluation: EvaluationSummary,
    subject: str,
    name: str,
    release: str,
    device: str,
    base: str = "",
) -> TrackedItem:
    against = f" against {base}" if base else ""
    return TrackedItem(
        *("eval", f"{evaluation.name} {release} {device} {subject} {name}{against}"),
        f"{evaluation.name}: {subject} {name}{against}, {release}",
        *(release, device),
        tuple(
            (key, value)
            for key, value in (
                *(
                    ("matrix", evaluation.name),
                    ("what", subject),
                    ("configuration", name),
                    ("base", base),
                ),
            )
            if value
        ),
    )


_REPORTED_PACKAGES = ("torch", "triton", "transformers", "flashinfer-python", "sglang-kernel")


def select_packages(versions: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, versions[name]) for name in _REPORTED_PACKAGES if name in versions)


def name_resource(device: str, gpu: str) -> str:
    """What is paid for: 'cpu', or the GPU by its name."""
    if device == "cpu":
        return device
    return gpu.partition(";")[0].partition(",")[0].strip() or device
