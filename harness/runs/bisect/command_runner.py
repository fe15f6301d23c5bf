"""The runner of any command: one process a run, with toggles in its environment."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import signal
import socket
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from harness.core import paths, processes
from harness.core.child_process import ProcessHandle
from harness.core.errors import UnfixError
from harness.core.outcomes import Verdict
from harness.fixes.patch_plan import Direction
from harness.patching import attestation, planner
from harness.patching.child_environment import ChildEnvironment
from harness.releases.source_trees import FolderSourceTree
from harness.runs.bisect.outcome_rules import OutcomeRules
from harness.runs.bisect.trial_runner import ToggleChoices, TrialJob, VersionUnderTest
from harness.store.bisect.values import BisectTrial
from harness.workers import command_supervisor
from harness.workers.command_supervisor import CommandRequest
from harness.workers.engine import Assignment, Engine, Worker, WorkPool

MAX_OUTPUT_KEPT = 6000  # characters of output in a trial
MAX_OUTPUT_JUDGED = 1 << 20  # bytes of output that the rules read
FIRST_RUN_LIMIT = 3600.0  # seconds for the first run without --limit
PORT_PLACEHOLDER = "{port}"


class CommandRunner:
    """Runs a command, and a server beside it if there is one."""

    is_deterministic = False

    def __init__(
        self,
        command: list[str],
        rules: OutcomeRules,
        folder: Path,
        *,
        jobs: int = 1,
        time_limit: float | None = None,
        server_command: str = "",
        ready_url: str = "",
        toggle_folders: list[Path] | None = None,
        extra_environment: dict[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.command = command
        self.rules = rules
        self.folder = folder
        self.jobs = jobs
        self.time_limit = time_limit
        self.server_command = server_command
        self.ready_url = ready_url
        self.toggle_folders = toggle_folders or []
        self.extra_environment = extra_environment or {}
        self.cwd = cwd or Path.cwd()
        self.longest_seconds = 0.0  # the longest run so far
        self._runs_started = 0
        if bool(server_command) != bool(ready_url):
            raise UnfixError("--serve needs --ready URL, and the other way round")
        if ready_url and not ready_url.startswith(("http://", "https://")):
            raise UnfixError(
                f"--ready {ready_url} is no address that begins with http:// or https://"
            )
        if (
            server_command
            and jobs > 1
            and not (PORT_PLACEHOLDER in server_command and PORT_PLACEHOLDER in ready_url)
        ):
            raise UnfixError(
                f"servers side by side need a port each: write {PORT_PLACEHOLDER} for it, or -j 1"
            )

    def find_unfit_toggles(
        self, version: VersionUnderTest, choices: ToggleChoices
    ) -> dict[str, str]:
        return {}  # each process patches only the modules that it imports

    def run(self, batch: list[TrialJob]) -> Iterator[tuple[int, BisectTrial]]:
        pool = _CommandPool(self, list(enumerate(batch)))
        engine = Engine([pool], self.jobs)
        try:
            for _ in engine.iterate_turns():
                while pool.ended:
                    index, job, folder = pool.ended.popleft()
                    yield index, self._read_trial(job, folder)
        finally:
            engine.end()

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _compute_time_limit(self) -> float:
        if self.time_limit is not None:
            return self.time_limit
        return 60 + 5 * self.longest_seconds if self.longest_seconds else FIRST_RUN_LIMIT

    def start_job(self, job: TrialJob) -> tuple[ProcessHandle, Path]:
        self._runs_started += 1
        folder = self.folder / str(self._runs_started)
        folder.mkdir(parents=True)
        environment = self._build_environment(job, folder / "attestations")
        port = (
            str(_find_free_port())
            if PORT_PLACEHOLDER in " ".join([self.server_command, self.ready_url])
            else ""
        )
        words = [word.replace(PORT_PLACEHOLDER, port) if port else word for word in self.command]
        request = CommandRequest(
            command=[_find_executable(words[0], environment["PATH"]), *words[1:]],
            server_command=self.server_command.replace(PORT_PLACEHOLDER, port),
            ready_url=self.ready_url.replace(PORT_PLACEHOLDER, port),
            environment=environment,
            working_folder=str(self.cwd),
            seconds=self._compute_time_limit(),
            output=str(folder / "output"),
        )
        command_supervisor.write_request(folder, request)
        return command_supervisor.fork_supervisor(folder), folder

    def _build_environment(self, job: TrialJob, attestation_folder: Path) -> ChildEnvironment:
        environment = ChildEnvironment(self.extra_environment)
        environment.put_python_first(job.version.python, job.version.environment_folder)
        revert, enable = split_by_direction(job)
        environment.set_toggles(revert, enable, self.toggle_folders, attestation_folder)
        if isinstance(job.version.tree, FolderSourceTree):
            planner.plan_ahead(job.version.tree.folder, revert, enable, environment)
        return environment

    def _read_trial(self, job: TrialJob, job_folder: Path) -> BisectTrial:
        ended = command_supervisor.read_exit(job_folder)
        seconds = ended.seconds if ended is not None else 0.0
        output = processes.read_log_tail(job_folder / "output", MAX_OUTPUT_JUDGED).strip()
        answer, how, value = self.rules.judge(ended, self._compute_time_limit(), output)
        if answer is not Verdict.FAILS or not how.startswith("hang"):
            self.longest_seconds = max(self.longest_seconds, seconds)
        reach_by_toggle = None
        folder = job_folder / "attestations"
        if job.choices:
            attestations = attestation.read_attestations(folder) if folder.is_dir() else []
            applied = {toggle for one in attestations for toggle in one.toggles}
            reach_by_toggle = {
                name: sum(one.reach(name, direction.value) for one in attestations)
                or sum(one.has_set_constant(name) for one in attestations)
                for name, direction in job.choices
            }
            missing = [name for name, _ in job.choices if name not in applied]
            wanted = str(job.version.tree.version)
            other_releases = {one.release for one in attestations if one.toggles} - {wanted}
            if other_releases and not missing and answer is not Verdict.CANNOT_TELL:
                answer = Verdict.CANNOT_TELL
                how = f"{how}, but it ran SGLang {', '.join(sorted(other_releases))}, not {wanted}"
            if missing and answer is not Verdict.CANNOT_TELL:
                answer = Verdict.CANNOT_TELL
                how = f"{how}, but {_explain_missing_toggles(output, missing, bool(attestations))}"
        shutil.rmtree(folder, ignore_errors=True)
        return job.make_trial(
            answer,
            how,
            seconds,
            value=value,
            reach_by_toggle=reach_by_toggle,
            output=output[-MAX_OUTPUT_KEPT:],
            replay=self._build_replay_command(job),
        )

    def _build_replay_command(self, job: TrialJob) -> str:
        revert, enable = split_by_direction(job)
        ours = paths.project_folder() / "unfix"
        words = [str(ours) if ours.exists() else "unfix", "exec", "--release", job.version.name]
        words += ["--revert", ",".join(revert)] if revert else []
        words += ["--enable", ",".join(enable)] if enable else []
        words += [word for folder in self.toggle_folders for word in ("--toggles", str(folder))]
        return f"cd {shlex.quote(str(self.cwd))} && {shlex.join([*words, '--', *self.command])}"


class _CommandWorker(Worker[None]):
    """A command below its supervisor: a worker of one item, whose end is its only message."""

    def __init__(self) -> None:
        self.supervisor: ProcessHandle | None = None
        self.folder = Path()

    def fileno(self) -> int:
        assert self.supervisor is not None
        return self.supervisor.fileno()

    def receive_messages(self) -> list[None]:
        return [None]

    def ask_to_end(self) -> None:
        if self.supervisor is not None:
            self.supervisor.send_signal(signal.SIGTERM)  # the supervisor ends the command

    def end(self, kill: bool = False) -> int:
        """Wait for the supervisor's end, unless another thread has reaped it."""
        with contextlib.suppress(ChildProcessError):
            return self.supervisor.reap() if self.supervisor is not None else 0
        return 0


class _CommandPool(WorkPool[tuple[int, TrialJob], None]):
    """A batch of commands, each in processes of its own."""

    shares_workers = False

    def __init__(self, runner: CommandRunner, jobs: list[tuple[int, TrialJob]]) -> None:
        super().__init__("the command", runner.jobs)
        self.ended: deque[tuple[int, TrialJob, Path]] = deque()
        self.is_collected = True
        self._runner = runner
        self.waiting.extend(jobs)

    def count_workers(self) -> int:
        return 0  # each item starts its own

    def find_free_worker(self) -> _CommandWorker | None:
        if not self.waiting:
            return None
        worker = _CommandWorker()
        self.workers.append(worker)
        return worker

    def send_item(self, assignment: Assignment[tuple[int, TrialJob]]) -> None:
        worker = assignment.worker
        worker.supervisor, worker.folder = self._runner.start_job(assignment.item[1])

    def handle_message(self, worker: _CommandWorker, message: None) -> None:
        (assignment,) = self.list_running(worker)
        self.finish(assignment.serial)
        self.retire_worker(worker)
        self.ended.append((*assignment.item, worker.folder))


def split_by_direction(job: TrialJob) -> tuple[list[str], list[str]]:
    """Split a job's toggles into the ids to revert and the ids to enable."""
    revert = [name for name, direction in job.choices if direction is Direction.REVERT]
    enable = [name for name, direction in job.choices if direction is Direction.ENABLE]
    return revert, enable


def _find_executable(name: str, path: str) -> str:
    found = shutil.which(name, path=path)
    if found is None:
        raise UnfixError(f"there is no command '{name}', and no guard of that name")
    return found


def _explain_missing_toggles(output: str, missing: list[str], has_attestations: bool) -> str:
    """Explain why toggles of a run were not applied."""
    messages = [line for line in output.splitlines() if line.startswith("unfix: ")]
    if messages:
        return f"its toggles were not applied: {messages[-1].removeprefix('unfix: ')}"
    names = ", ".join(missing)
    if has_attestations:
        return f"no process applied {names}"
    return "no process that imports SGLang applied its toggles: the outcome says nothing"


def _find_free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
