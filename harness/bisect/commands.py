"""Any command as a runner: a process a run, under toggles that come through the environment."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness import paths, processes
from harness.bisect import supervise
from harness.bisect.judging import Rules
from harness.bisect.runners import Choices, Job, Place
from harness.errors import UnfixError
from harness.patching import attestation, environment, planner
from harness.patching.plan import Direction
from harness.releases.sources import FolderTree
from harness.store.bisect.values import Answer, Trial

LONGEST = 6000  # letters of output that are kept
READ = 1 << 20  # bytes of output that are judged
FIRST = 3600.0  # seconds for the first run, when nobody said how long it takes
PORT = "{port}"


class Commands:
    """Runs a command, with a server beside it if one is asked for."""

    steady = False

    def __init__(
        self,
        words: list[str],
        rules: Rules,
        folder: Path,
        *,
        jobs: int = 1,
        seconds: float | None = None,
        serve: str = "",
        ready: str = "",
        toggles: list[Path] | None = None,
        extra: dict[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.words = words
        self.rules = rules
        self.folder = folder
        self.jobs = jobs
        self.seconds = seconds
        self.serve = serve
        self.ready = ready
        self.folders = toggles or []
        self.extra = extra or {}
        self.cwd = cwd or Path.cwd()
        self.longest = 0.0  # of the runs so far
        self._number = 0
        if bool(serve) != bool(ready):
            raise UnfixError("--serve needs --ready URL, and the other way round")
        if ready and not ready.startswith(("http://", "https://")):
            raise UnfixError(f"--ready {ready} is no address that begins with http:// or https://")
        if serve and jobs > 1 and not (PORT in serve and PORT in ready):
            raise UnfixError(f"servers side by side need a port each: write {PORT} for it, or -j 1")

    def unfit(self, place: Place, choices: Choices) -> dict[str, str]:
        return {}  # each process patches what it imports, and nothing else

    def run(self, batch: list[Job]) -> Iterator[tuple[int, Trial]]:
        waiting = list(enumerate(batch))
        running: dict[int, tuple[int, Job, int, Path]] = {}
        try:
            while waiting or running:
                while waiting and len(running) < self.jobs:
                    index, job = waiting.pop(0)
                    pid, file = self._start(job)
                    running[os.pidfd_open(pid)] = (index, job, pid, file)
                for handle in select.select(list(running), [], [])[0]:
                    index, job, pid, file = running.pop(handle)
                    _gone(handle, pid)
                    yield index, self._trial(job, file)
        finally:
            for handle, (_, _, pid, _) in running.items():
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, signal.SIGTERM)  # it ends what it looks after
                _gone(handle, pid)

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _limit(self) -> float:
        if self.seconds is not None:
            return self.seconds
        return 60 + 5 * self.longest if self.longest else FIRST

    def _start(self, job: Job) -> tuple[int, Path]:
        self._number += 1
        folder = self.folder / str(self._number)
        folder.mkdir(parents=True)
        surroundings = self._environment(job, folder / "attestations")
        port = str(_free_port()) if PORT in " ".join([self.serve, self.ready]) else ""
        words = [word.replace(PORT, port) if port else word for word in self.words]
        asked = {
            "command": [_found(words[0], surroundings["PATH"]), *words[1:]],
            "serve": self.serve.replace(PORT, port),
            "ready": self.ready.replace(PORT, port),
            "environment": surroundings,
            "folder": str(self.cwd),
            "seconds": self._limit(),
            "output": str(folder / "output"),
        }
        file = folder / "asked.json"
        file.write_text(json.dumps(asked))
        return supervise.start(file), file

    def _environment(self, job: Job, attestations: Path) -> dict[str, str]:
        found = {**os.environ, **self.extra}
        environment.find_first(found, job.place.python, job.place.folder)
        revert, enable = by_direction(job)
        environment.put_in(found, revert, enable, self.folders, attestations)
        if isinstance(job.place.tree, FolderTree):
            planner.ahead(job.place.tree.folder, revert, enable, found)
        return found

    def _trial(self, job: Job, file: Path) -> Trial:
        seen: dict[str, Any]
        try:
            seen = json.loads(file.with_suffix(".seen").read_text())
        except (OSError, ValueError):
            seen = {"how": "lost", "seconds": 0.0}
        seen["limit"] = self._limit()
        output = processes.said_last(file.parent / "output", READ).strip()
        answer, how, value = self.rules.judge(seen, output)
        if answer is not Answer.FAILS or not how.startswith("hang"):
            self.longest = max(self.longest, seen["seconds"])
        ran = None
        folder = file.parent / "attestations"
        if job.choices:
            found = attestation.read(folder) if folder.is_dir() else []
            applied = {toggle for one in found for toggle in one.toggles}
            ran = {
                name: sum(one.reach(name, direction.value) for one in found)
                for name, direction in job.choices
            }
            missing = [name for name, _ in job.choices if name not in applied]
            wanted = str(job.place.tree.version)
            other = {one.release for one in found if one.toggles} - {wanted}
            if other and not missing and answer is not Answer.CANNOT_TELL:
                answer = Answer.CANNOT_TELL
                how = f"{how}, but it ran SGLang {', '.join(sorted(other))}, not {wanted}"
            if missing and answer is not Answer.CANNOT_TELL:
                answer = Answer.CANNOT_TELL
                how = f"{how}, but {_unapplied(output, missing, bool(found))}"
        shutil.rmtree(folder, ignore_errors=True)
        return job.came_to(
            answer,
            how,
            seen["seconds"],
            value=value,
            ran=ran,
            output=output[-LONGEST:],
            replay=self._replay(job),
        )

    def _replay(self, job: Job) -> str:
        revert, enable = by_direction(job)
        ours = paths.project() / "unfix"
        words = [str(ours) if ours.exists() else "unfix", "exec", "--release", job.place.name]
        words += ["--revert", ",".join(revert)] if revert else []
        words += ["--enable", ",".join(enable)] if enable else []
        words += [word for folder in self.folders for word in ("--toggles", str(folder))]
        return f"cd {shlex.quote(str(self.cwd))} && {shlex.join([*words, '--', *self.words])}"


def _gone(handle: int, pid: int) -> None:
    """Wait for the end of a process, unless somebody has done so."""
    os.close(handle)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def by_direction(job: Job) -> tuple[list[str], list[str]]:
    """The ids to be reverted, and those to be enabled."""
    revert = [name for name, direction in job.choices if direction is Direction.REVERT]
    enable = [name for name, direction in job.choices if direction is Direction.ENABLE]
    return revert, enable


def _found(word: str, path: str) -> str:
    found = shutil.which(word, path=path)
    if found is None:
        raise UnfixError(f"there is no command '{word}', and no guard of that name")
    return found


def _unapplied(output: str, missing: list[str], some: bool) -> str:
    """Why toggles that were asked for were not applied."""
    said = [line for line in output.splitlines() if line.startswith("unfix: ")]
    if said:
        return f"its toggles were not applied: {said[-1].removeprefix('unfix: ')}"
    names = ", ".join(missing)
    if some:
        return f"no process applied {names}"
    return "no process that imports SGLang applied its toggles: the outcome says nothing"


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
