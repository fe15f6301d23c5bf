"""What the store holds of one failure: its words, its example, the lines that run it again."""

from __future__ import annotations

import json
import shlex

import msgspec

from harness.history.values import Line, Seen
from harness.store.database import Store
from harness.store.fuzz.values import Failure

TAIL = 40  # lines of a traceback or of a log


class Evidence(msgspec.Struct):
    """All of it in words."""

    said: str = ""
    example: str = ""
    tail: str = ""  # the end of its traceback, or of its log
    replay: str = ""  # the line that runs it again
    command: list[str] = []  # what was run, where that is a command of its own
    blob: str = ""  # of a test's example
    files: dict[str, str] = {}  # what the replay line needs, by name


class Evidences:
    """Reads a failure whole, one at a time."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._commands = {run.id: run.command for run in store.prove.all()}
        self._commands |= {run.id: run.command for run in store.mutate.all()}
        self._matrices = {run.id: run.file for run in store.matrix.all()}

    def of(self, line: Line) -> Evidence:
        last = line.telling[-1].last
        about = dict(line.thing.about)
        if line.thing.kind in ("prove", "lifecycle") and "guard" in about:
            return self._cell(line, about, last)
        if line.thing.kind == "matrix":
            return self._matrix(line, last)
        if line.thing.kind == "eval":
            return self._evaluation(about, last)
        if line.thing.kind == "mutate" and "fault" in about:
            return self._fault(line, about, last)
        if failure := self._failure(line, last):
            return _fuzzed(failure)
        command = self._commands.get(last.run, [])
        return Evidence(last.words, replay=shlex.join(command), command=command)

    def _cell(self, line: Line, about: dict[str, str], last: Seen) -> Evidence:
        key = line.thing.release, about["on"], about["toggle"], about["guard"]
        sides = self.store.prove.sides_of(last.run, key)
        telling = next((side for side in sides if side.headline or side.detail), None)
        found = telling or (sides[0] if sides else None)
        if found is None:
            return Evidence(last.words)
        return Evidence(
            last.words, "\n".join(found.example), _end(found.detail or found.output), found.replay
        )

    def _matrix(self, line: Line, last: Seen) -> Evidence:
        identity = dict(line.thing.about)["cell"]
        cell = self.store.history.matrix_cell(last.run, identity)
        failed = [one for one in cell.attempts if one.outcome.failed] or cell.attempts
        words = ["./unfix", "matrix", "run", self._matrices[last.run], "--cell", identity]
        return Evidence(
            *(last.words, shlex.join(cell.command), _end(failed[-1].output), shlex.join(words)),
            cell.command,
        )

    def _evaluation(self, about: dict[str, str], last: Seen) -> Evidence:
        command = self.store.history.evaluation(last.run).command
        name = about.get("configuration", "")
        # 'eval' is what was asked for by its arguments, which has no configurations to choose.
        only = f" --only {shlex.quote(name)}" if name and about.get("matrix") != "eval" else ""
        return Evidence(last.words, replay=f"{command}{only}", command=shlex.split(command))

    def _fault(self, line: Line, about: dict[str, str], last: Seen) -> Evidence:
        words = ["./unfix", "mutate", about["target"], "--release", line.thing.release]
        replay = shlex.join([*words, "--fault", about["fault"]])
        fated = self.store.mutate.fated_in(last.run, about["fault"])
        passed = "\n".join(f"passed by {guard}" for guard in fated.passed)
        return Evidence(last.words, fated.diff, passed, replay)

    def _failure(self, line: Line, last: Seen) -> Failure | None:
        for run in self.store.fuzz.all():
            if run.id == last.run:
                return next((one for one in run.failures if one.name == line.thing.key), None)
        return None


def _fuzzed(failure: Failure) -> Evidence:
    repro = json.loads(failure.file)
    name = f"{failure.name}.json"
    return Evidence(
        failure.headline,
        "\n".join(repro.get("arguments", [])),
        _end(str(repro.get("detail", ""))),
        shlex.join(["./unfix", "fuzz", "--replay", name]),
        blob=str(repro.get("blob", "")),
        files={name: failure.file},
    )


def _end(text: str) -> str:
    return "\n".join(text.rstrip().splitlines()[-TAIL:])
