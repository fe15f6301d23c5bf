"""The stored evidence of one failure: message, example, log, and the command that repeats it."""

from __future__ import annotations

import shlex

import msgspec

from harness.runs.history.values import Observation, Timeline
from harness.store.database import Store
from harness.store.eval.table import EvalTable
from harness.store.fuzz.table import FuzzTable
from harness.store.fuzz.values import RunFailure
from harness.store.matrix.table import MatrixTable
from harness.store.matrix.values import FAILURES
from harness.store.mutate.table import MutationTable
from harness.store.prove.table import ProveTable

TAIL_LINES = 40  # lines of a traceback or of a log


class FailureEvidence(msgspec.Struct):
    """The evidence as text."""

    message: str = ""
    example: str = ""
    tail: str = ""  # the end of its traceback, or of its log
    replay_command: str = ""  # the command line that repeats it
    command: list[str] = []  # the command that failed, if the failure is one of a command
    example_blob: str = ""  # the failing example, as Hypothesis encodes it
    files: dict[str, str] = {}  # files that the replay command needs, by name


class EvidenceReader:
    """Reads the evidence of one failure at a time."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._command_by_run = {run.id: run.command for run in ProveTable(store).list_runs()}
        self._command_by_run |= {run.id: run.command for run in MutationTable(store).list_runs()}
        self._command_by_evaluation = {run.id: run.command for run in EvalTable(store).list_runs()}
        self._matrix_file_by_run = {run.id: run.file for run in MatrixTable(store).list_runs()}

    def read_evidence(self, timeline: Timeline) -> FailureEvidence:
        last = timeline.informative_points[-1].main_observation
        details = dict(timeline.item.details)
        if timeline.item.kind in ("prove", "lifecycle") and "guard" in details:
            return self._read_cell(timeline, details, last)
        if timeline.item.kind == "matrix":
            return self._read_matrix_cell(timeline, last)
        if timeline.item.kind == "eval":
            return self._read_evaluation(details, last)
        if timeline.item.kind == "mutate" and "fault" in details:
            return self._read_fault(timeline, details, last)
        if failure := self._find_fuzz_failure(timeline, last):
            return _evidence_from_fuzz_failure(failure)
        command = self._command_by_run.get(last.run_id, [])
        return FailureEvidence(last.message, replay_command=shlex.join(command), command=command)

    def _read_cell(
        self, timeline: Timeline, details: dict[str, str], last_observation: Observation
    ) -> FailureEvidence:
        key = timeline.item.release, details["on"], details["toggle"], details["guard"]
        sides = ProveTable(self.store).load_sides(last_observation.run_id, key)
        if not sides:
            return FailureEvidence(last_observation.message)
        side = next((side for side in sides if side.headline or side.detail), sides[0])
        return FailureEvidence(
            last_observation.message,
            "\n".join(side.example),
            _take_tail(side.detail or side.output),
            side.replay,
        )

    def _read_matrix_cell(
        self, timeline: Timeline, last_observation: Observation
    ) -> FailureEvidence:
        identity = dict(timeline.item.details)["cell"]
        cell = MatrixTable(self.store).load_cell(last_observation.run_id, identity)
        failed = [one for one in cell.attempts if one.outcome in FAILURES] or cell.attempts
        file = self._matrix_file_by_run[last_observation.run_id]
        return FailureEvidence(
            last_observation.message,
            shlex.join(cell.command),
            _take_tail(failed[-1].output),
            shlex.join(["./unfix", "matrix", "run", file, "--cell", identity]),
            cell.command,
        )

    def _read_evaluation(
        self, details: dict[str, str], last_observation: Observation
    ) -> FailureEvidence:
        command = self._command_by_evaluation[last_observation.run_id]
        name = details.get("configuration", "")
        # An evaluation named 'eval' has no matrix, so no configuration to choose.
        only = f" --only {shlex.quote(name)}" if name and details.get("matrix") != "eval" else ""
        return FailureEvidence(
            last_observation.message,
            replay_command=f"{command}{only}",
            command=shlex.split(command),
        )

    def _read_fault(
        self, timeline: Timeline, details: dict[str, str], last_observation: Observation
    ) -> FailureEvidence:
        words = ["./unfix", "mutate", details["target"], "--release", timeline.item.release]
        replay = shlex.join([*words, "--fault", details["fault"]])
        result = MutationTable(self.store).load_result(last_observation.run_id, details["fault"])
        passed = "\n".join(f"passed by {guard}" for guard in result.passed)
        return FailureEvidence(last_observation.message, result.diff, passed, replay)

    def _find_fuzz_failure(
        self, timeline: Timeline, last_observation: Observation
    ) -> RunFailure | None:
        for run in FuzzTable(self.store).list_runs():
            if run.id == last_observation.run_id:
                return next((one for one in run.failures if one.name == timeline.item.key), None)
        return None


def _evidence_from_fuzz_failure(failure: RunFailure) -> FailureEvidence:
    repro, name = failure.repro, f"{failure.name}.json"
    return FailureEvidence(
        repro.headline,
        "\n".join(repro.arguments),
        _take_tail(repro.detail),
        shlex.join(["./unfix", "fuzz", "--replay", name]),
        example_blob=repro.blob,
        files={name: repro.format_file()},
    )


def _take_tail(text: str) -> str:
    return "\n".join(text.rstrip().splitlines()[-TAIL_LINES:])
