"""From a store to observations: every run of the window, whatever command made it."""

from __future__ import annotations

import datetime
from collections.abc import Iterable

import msgspec

from harness.history import window
from harness.history.values import Outcome, Seen, Thing, Versions
from harness.store.database import Store
from harness.store.eval.values import Judged
from harness.store.fuzz.values import FuzzRun
from harness.store.history import AttemptGlance, CellGlance, EvaluationGlance, OnGlance
from harness.store.matrix.values import MatrixRun
from harness.store.matrix.values import Outcome as Ended
from harness.store.mutate.values import Fate, Mutation
from harness.store.prove.values import Run, Verdict

MOST = 300  # letters of what is said


class Met(msgspec.Struct):
    """A run of the window."""

    id: str
    night: datetime.date
    at: float
    ended: bool  # came to its end


class Reading:
    """Everything seen since a moment."""

    def __init__(self, store: Store, since: datetime.datetime, now: datetime.datetime) -> None:
        self.store = store
        self.since = since
        self.now = now
        self.things: dict[tuple[str, str], Thing] = {}
        self.seen: dict[tuple[str, str], list[tuple[datetime.date, Seen]]] = {}
        self.runs: list[Met] = []
        self.notes: list[str] = []
        self._known: dict[tuple[str, str], Versions] = {}
        self._read()

    def _read(self) -> None:
        for run in self.store.prove.all():
            if met := self._met(run.id, run.started, run.status == "finished"):
                self._proof(run, met)
        for matrix in self.store.matrix.all():
            if met := self._met(matrix.id, matrix.started, matrix.status == "finished"):
                self._matrix(matrix, met)
        for listed in self.store.eval.all():
            if met := self._met(listed.id, listed.started, listed.status == "done"):
                self._evaluation(self.store.history.evaluation(listed.id), met)
        searched = [
            (run, met)
            for run in self.store.fuzz.all()
            if (met := self._met(run.id, run.started, run.status == "finished"))
        ]
        self._fuzzing(searched)
        for mutation in self.store.mutate.all():
            if met := self._met(mutation.id, mutation.started, mutation.status == "finished"):
                self._mutation(self.store.mutate.whole(mutation), met)

    def _met(self, name: str, started: str | float, ended: bool) -> Met | None:
        """A run, if it is of the window."""
        moment = window.moment_of(started)
        if moment is None:
            self.notes.append(f"{name} says of its start '{started}', which is no time: left out")
            return None
        if moment > self.now + window.AHEAD:
            told = moment.astimezone(datetime.UTC).isoformat(sep=" ", timespec="minutes")
            self.notes.append(f"{name} began in the future ({told}): a clock is wrong; left out")
            return None
        if moment < self.since:
            return None
        met = Met(name, window.night_of(moment), moment.timestamp(), ended)
        self.runs.append(met)
        return met

    def _add(self, thing: Thing, met: Met, one: Seen) -> None:
        where = thing.kind, thing.key
        self.things[where] = thing
        self.seen.setdefault(where, []).append((met.night, one))

    # Proofs and lives

    def _proof(self, run: Run, met: Met) -> None:
        unfix = str(run.settings.get("commit", ""))
        versions = {}
        devices = {}
        for on in self.store.history.releases(run.id):
            place = on.release, on.device
            versions[place] = Versions(on.release, unfix, packages(on.versions))
            devices[place] = resource(on.device, str(on.machine.get("gpu", "")))
            self._collected(run, on, met, versions[place], devices[place])
        for cell in self.store.history.cells(run.id):
            place = cell.release, cell.device
            if cell.verdict is not None:
                told = versions.get(place, Versions(cell.release, unfix))
                self._cell(run, cell, met, told, devices.get(place, cell.device))

    def _collected(self, run: Run, on: OnGlance, met: Met, versions: Versions, device: str) -> None:
        """That a release could be started and everything collected is a thing by itself."""
        wrong = [*on.problems, *(f"no guard names {toggle}" for toggle in on.unguarded or ())]
        thing = Thing(
            *(run.kind, f"{on.release} {on.device} collected"),
            f"everything collected on {on.release}, {on.device}",
            *(on.release, device),
        )
        outcome = Outcome.FAILED if wrong else Outcome.OK
        seconds = on.seconds_to_start
        one = Seen(met.at, run.id, outcome, versions, "; ".join(wrong)[:MOST], seconds)
        self._add(thing, met, one)

    def _cell(self, run: Run, cell: CellGlance, met: Met, versions: Versions, device: str) -> None:
        verdict = Verdict(cell.verdict or "")
        outcome = Outcome.OK if verdict.good else Outcome.FAILED
        if verdict is Verdict.NA:
            outcome = Outcome.SILENT
        elif verdict is Verdict.FLAKY or (verdict.good and cell.retried):
            outcome = Outcome.FLAKY
        words = ""
        if outcome is not Outcome.OK:
            told = cell.retried or cell.headline or cell.why
            words = f"{verdict}: {told}" if told else str(verdict)
        name = cell.guard.partition("::")[2] or cell.guard
        thing = Thing(
            kind=run.kind,
            key=f"{cell.release} {cell.device} {cell.toggle} {cell.guard}",
            title=f"{cell.toggle}: {name.removeprefix('test_')} on {cell.release}, {cell.device}",
            release=cell.release,
            device=device,
            about=(("toggle", cell.toggle), ("guard", cell.guard), ("on", cell.device)),
        )
        held = 0.0 if device == "cpu" else cell.seconds
        one = Seen(met.at, run.id, outcome, versions, words[:MOST], cell.seconds, held)
        self._add(thing, met, one)

    def _versions(self, release: str, unfix: str) -> Versions:
        """One value for all that ran with them."""
        found = self._known.get((release, unfix))
        if found is None:
            found = self._known[release, unfix] = Versions(release, unfix)
        return found

    # The matrix

    def _matrix(self, run: MatrixRun, met: Met) -> None:
        tried: list[AttemptGlance] = []
        before = ""
        for cell, attempt in self.store.history.attempts(run.id):
            if cell != before and tried:
                self._tried(run, before, tried, met)
                tried = []
            before = cell
            tried.append(attempt)
        if tried:
            self._tried(run, before, tried, met)

    def _tried(self, run: MatrixRun, cell: str, tried: list[AttemptGlance], met: Met) -> None:
        last = tried[-1]
        if not last.last:  # stopped before it was run again
            return
        key = "matrix", f"{run.name} {cell}"
        thing = self.things.get(key) or self._planned(run, cell)
        outcome = _ENDED.get(last.outcome, Outcome.FAILED)
        versions = self._versions(thing.release, run.commit)
        words, seconds, device_seconds = "", last.seconds, last.device_seconds
        if len(tried) > 1:
            seconds = sum(each.seconds for each in tried)
            device_seconds = sum(each.device_seconds for each in tried)
        if outcome is not Outcome.OK or len(tried) > 1:
            failed = [each for each in tried if each.outcome.failed]
            if failed and outcome is Outcome.OK:
                outcome = Outcome.FLAKY
            words = "" if outcome is Outcome.OK else _how(failed[0] if failed else last)
        # The run says when; an attempt's own clock may be another machine's.
        one = Seen(met.at, run.id, outcome, versions, words, seconds, device_seconds)
        self._add(thing, met, one)

    def _planned(self, run: MatrixRun, identity: str) -> Thing:
        cell = self.store.history.matrix_cell(run.id, identity)
        values = ", ".join(f"{axis} {value}" for axis, value in cell.values.items())
        return Thing(
            *("matrix", f"{run.name} {identity}", f"{run.name}: {values}"),
            cell.values.get("release", ""),
            cell.values.get("device", ""),
            (*cell.values.items(), ("what runs", cell.work), ("cell", identity)),
        )

    # Evaluations

    def _evaluation(self, one: EvaluationGlance, met: Met) -> None:
        device = resource(one.device, one.machine.get("gpu", ""))
        unfix = one.machine.get("unfix", "")
        known = packages(one.machine)
        meant = {fault.served for fault in one.faults}
        releases = {}
        for served in one.served:
            release = served.release
            if release == "current":
                release = one.machine.get("sglang", release)
            releases[served.name] = release
            if served.name in meant:
                continue
            errors = [answer.error for answer in served.answers if answer.error]
            words = served.failure or (f"{len(errors)} errors: {errors[0]}" if errors else "")
            if not (words or served.answers or served.absent):
                words = "it answered nothing, and nobody said why"
            outcome = Outcome.SILENT if served.absent else Outcome.FAILED if words else Outcome.OK
            took = served.ready + served.seconds
            self._add(
                _of(one, "served", served.name, release, device),
                met,
                Seen(
                    *(met.at, one.id, outcome, Versions(release, unfix, known)),
                    *((words or served.absent)[:MOST], took, 0.0 if device == "cpu" else took),
                ),
            )
        for compared in one.compared:
            if compared.candidate in meant:
                continue
            release = releases.get(compared.candidate, "")
            outcome = Outcome.OK if compared.verdict.fine else Outcome.FAILED
            if compared.verdict in (Judged.NA, Judged.CANNOT_TELL):
                outcome = Outcome.SILENT
            what = f"{compared.kind} {compared.task}".strip()
            thing = _of(one, f"{what} of", compared.candidate, release, device, compared.base)
            said = compared.words.removeprefix(f"{compared.verdict}: ")
            told = "" if outcome is Outcome.OK else f"{compared.verdict}: {said}"
            seen = Seen(met.at, one.id, outcome, Versions(release, unfix, known), told[:MOST])
            self._add(thing, met, seen)
        for fault in one.faults:
            if fault.expected:
                release = releases.get(fault.served, "")
                outcome = Outcome.OK if fault.caught else Outcome.FAILED
                if fault.absent:
                    outcome = Outcome.SILENT
                words = "" if fault.caught else fault.absent or "put in on purpose, and not noticed"
                thing = _of(one, f"{fault.toggle} noticed in", fault.configuration, release, device)
                versions = Versions(release, unfix, known)
                self._add(thing, met, Seen(met.at, one.id, outcome, versions, words))

    # Fuzzing

    def _fuzzing(self, runs: Iterable[tuple[FuzzRun, Met]]) -> None:
        """A failure that does not come up again where its test was searched again counts as ok:
        its example is tried first each night, if the corpus was kept."""
        runs = list(runs)
        known: dict[tuple[str, str, str], dict[str, Thing]] = {}
        for run, _ in runs:
            for failure in run.failures:
                place = failure.test, failure.release, str(run.under)
                known.setdefault(place, {})[failure.name] = Thing(
                    *("fuzz", failure.name, failure.name, failure.release, "cpu"),
                    (("test", failure.test), *run.under),
                )
        for run, met in runs:
            self._searched(run, met, known)

    def _searched(
        self, run: FuzzRun, met: Met, known: dict[tuple[str, str, str], dict[str, Thing]]
    ) -> None:
        failed = {failure.name: failure for failure in run.failures}
        for test in run.tests:
            versions = Versions(test.release, run.commit)
            things = known.get((test.test, test.release, str(run.under)), {})
            quiet = test.left_out or ("" if test.examples else "no example was run")
            name = test.test.partition("::")[2].removeprefix("test_") or test.test
            under = "".join(f" {direction} {toggle}" for toggle, direction in run.under)
            whole = Thing(
                *("fuzz", f"{test.release} {test.test}{under}", f"{name} on {test.release}{under}"),
                *(test.release, "cpu", (("test", test.test), *run.under)),
            )
            if not set(things) & set(failed):
                outcome = Outcome.SILENT if quiet else Outcome.OK
                words = quiet or f"nothing found in {test.examples} examples"
                self._add(whole, met, Seen(met.at, run.id, outcome, versions, words, test.seconds))
            for name, thing in things.items():
                if name in failed:
                    outcome, words = Outcome.FAILED, failed[name].headline
                else:
                    outcome = Outcome.SILENT if quiet else Outcome.OK
                    words = quiet or f"not found again in {test.examples} examples"
                first = name == next((each for each in things if each in failed), None)
                seconds = test.seconds if first else 0.0
                self._add(
                    thing, met, Seen(met.at, run.id, outcome, versions, words[:MOST], seconds)
                )
        self._fuzzed(run, met)

    def _fuzzed(self, run: FuzzRun, met: Met) -> None:
        """What could not be fuzzed is a thing of its own, on each release."""
        for release in dict.fromkeys(test.release for test in run.tests):
            said = [text for text in run.problems if text.startswith(f"SGLang {release}:")]
            thing = Thing(
                "fuzz", f"{release} whole", f"all of the suites on {release}", release, "cpu"
            )
            outcome = Outcome.FAILED if said else Outcome.OK
            words = "; ".join(said)[:MOST]
            one = Seen(met.at, run.id, outcome, Versions(release, run.commit), words)
            self._add(thing, met, one)

    # Faults

    def _mutation(self, run: Mutation, met: Met) -> None:
        """A fault that was killed once and survives now: a suite has become weaker."""
        unfix = str(run.settings.get("commit", ""))
        versions = Versions(run.release, unfix, packages(run.versions))
        for fated in run.fates:
            fault = fated.fault
            outcome = Outcome.SILENT
            if fated.untrue or fated.fate is Fate.SURVIVED:
                outcome = Outcome.FAILED
            elif fated.fate is Fate.KILLED:
                outcome = Outcome.OK
            words = f"{fated.fate}: {fault.words}" if outcome is not Outcome.OK else ""
            if fated.untrue:
                words = f"said to be equal, and {fated.by} kills it"
            thing = Thing(
                *("mutate", f"{run.release} {fault.id}"),
                f"{fault.id} in {fault.target} on {run.release}: {fault.words}",
                *(run.release, "cpu"),
                (("fault", fault.id), ("target", fault.target), ("operator", fault.operator)),
            )
            seen = Seen(met.at, run.id, outcome, versions, words[:MOST], fated.seconds)
            self._add(thing, met, seen)
        said = Outcome.FAILED if run.noted else Outcome.OK
        whole = Thing(
            *("mutate", f"{run.release} whole", f"all guards without a fault on {run.release}"),
            *(run.release, "cpu"),
        )
        told = "; ".join(run.noted)[:MOST]
        spent = run.seconds_to_start + run.seconds_to_reach
        self._add(whole, met, Seen(met.at, run.id, said, versions, told, spent))


_ENDED = {
    Ended.GREEN: Outcome.OK,
    Ended.NOT_READY: Outcome.SILENT,
    Ended.LOST: Outcome.SILENT,
}


def _how(one: AttemptGlance) -> str:
    return f"{one.outcome}: {one.how}"[:MOST]


def _of(
    one: EvaluationGlance, what: str, name: str, release: str, device: str, base: str = ""
) -> Thing:
    against = f" against {base}" if base else ""
    return Thing(
        *("eval", f"{one.name} {release} {device} {what} {name}{against}"),
        f"{one.name}: {what} {name}{against}, {release}",
        *(release, device),
        tuple(
            (key, value)
            for key, value in (
                *(("matrix", one.name), ("what", what), ("configuration", name), ("base", base)),
            )
            if value
        ),
    )


_PACKAGES = ("torch", "triton", "transformers", "flashinfer-python", "sglang-kernel")


def packages(versions: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, versions[name]) for name in _PACKAGES if name in versions)


def resource(device: str, gpu: str) -> str:
    """What is paid for: 'cpu', or the GPU by its name."""
    if device == "cpu":
        return device
    return gpu.partition(";")[0].partition(",")[0].strip() or device
