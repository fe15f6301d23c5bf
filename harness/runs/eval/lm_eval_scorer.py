"""A process of lm-eval: sends the items of tasks to a server, and scores the answers."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import subprocess
import sys
import threading
import venv
from pathlib import Path

import msgspec

from harness.core import paths
from harness.core.child_process import ProcessHandle
from harness.core.errors import NotReadyError, UnfixError
from harness.matrices.schema import DEFAULT_TASKS
from harness.patching.child_environment import ChildEnvironment
from harness.runs.eval import lm_eval_client
from harness.runs.eval.configuration_checks import OPTIONAL_TASKS
from harness.store.eval.values import ItemAnswer
from harness.workers.servers.json_process import JsonProcess, ProcessEnded, ReplyTimeout
from harness.workers.servers.server import ServerFailed, SglangServer

LM_EVAL_REQUIREMENT = "lm-eval[api]==0.4.13"
INSTALL_MARKER = "unfix-complete.json"  # written when the installation is complete
OWN_TASK_PREFIX = "unfix_"
TASKS_FOLDER = paths.project_folder() / "fixtures" / "tasks"
START_SECONDS = 180.0
DEAD_SERVER_SECONDS = 30.0  # to collect the answers that came before the server died
SCORING_SECONDS = 60.0  # to score the answers

_install_lock = threading.Lock()


def find_lm_eval_python() -> Path:
    """Find a Python with lm-eval: this one, or an environment under .releases, else install it."""
    if importlib.util.find_spec("lm_eval") is not None:
        return Path(sys.executable)
    home = paths.releases_folder() / "lm-eval"
    if not _is_installed(home):
        home.parent.mkdir(parents=True, exist_ok=True)
        with _install_lock, open(home.parent / ".lm-eval.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_installed(home):  # another process may have installed it
                _install_lm_eval(home)
    return home / "bin" / "python"


def _is_installed(home: Path) -> bool:
    try:
        marker = json.loads((home / INSTALL_MARKER).read_text())
    except (OSError, ValueError):
        return False
    return bool(marker == {"pin": LM_EVAL_REQUIREMENT} and (home / "bin" / "python").exists())


def _install_lm_eval(home: Path) -> None:
    print(f"unfix: installing {LM_EVAL_REQUIREMENT}, once: one to three minutes", file=sys.stderr)
    try:
        venv.create(home, clear=True, with_pip=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise NotReadyError(f"lm-eval cannot be installed: {error}") from error
    arguments = ["-m", "pip", "install", "-q", "--disable-pip-version-check", LM_EVAL_REQUIREMENT]
    command = [str(home / "bin" / "python"), *arguments]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        raise NotReadyError(f"lm-eval cannot be installed: {process.stderr.strip()[-600:]}")
    (home / INSTALL_MARKER).write_text(json.dumps({"pin": LM_EVAL_REQUIREMENT}))


def get_task_name(task: str) -> str:
    """Return the name in lm-eval of a task: of this project by its short name, or of lm-eval."""
    return OWN_TASK_PREFIX + task if task in (*DEFAULT_TASKS, *OPTIONAL_TASKS) else task


class LmEvalScorer:
    """One lm-eval process, which queries one server at a time."""

    def __init__(self, log: Path, seed: int) -> None:
        self.seed = seed
        self._request_count = 0
        environment = ChildEnvironment(
            {"HF_HUB_DISABLE_TELEMETRY": "1", "TOKENIZERS_PARALLELISM": "false"}
        )
        environment.add_python_path(paths.HARNESS_FOLDER.parent)
        self.piped_process = JsonProcess(
            [str(find_lm_eval_python()), "-m", "harness.runs.eval.lm_eval_client"], environment, log
        )
        self._is_ready = False

    def score_items(
        self,
        server: SglangServer,
        items_by_task: dict[str, list[int]],
        *,
        items: int,
        concurrency: int,
        model: str,
        tokenizer: str | None = None,
        request_timeout: float = lm_eval_client.REQUEST_SECONDS,
        total_timeout: float = 3600.0,
    ) -> list[ItemAnswer]:
        """Score a server's answers to these items; raise if none can be scored."""
        if not self._is_ready:
            self._await_reply(START_SECONDS)
            self._is_ready = True
        self._request_count += 1
        out = server.folder / f"answers-{self._request_count}.json"
        request = {
            "url": server.url,
            "model": model,
            "tokenizer": tokenizer,
            "tasks": list(items_by_task),
            "samples": items_by_task,
            "seed": self.seed,
            "concurrency": concurrency,
            "limit": request_timeout,
            "seconds": total_timeout,
            "known": {
                "folder": str(TASKS_FOLDER),
                "metadata": {"seed": self.seed, "items": items},
            },
            "out": str(out.resolve()),
        }
        try:
            self.piped_process.send_json(request)
        except ProcessEnded as gone:
            raise NotReadyError(f"lm-eval ended: {gone}") from None
        self._await_reply(request_timeout + total_timeout + SCORING_SECONDS, server.handle)
        return msgspec.convert(json.loads(out.read_bytes()), list[ItemAnswer])

    def _await_reply(self, seconds: float, server: ProcessHandle | None = None) -> None:
        """Wait for a reply; once the server has died, the remaining items fail by themselves."""
        try:
            reply = self.piped_process.receive_json(seconds, server, DEAD_SERVER_SECONDS)
        except ReplyTimeout as silent:
            raise ServerFailed(f"no answers within {silent}") from None
        except ProcessEnded as gone:
            raise NotReadyError(f"lm-eval ended: {gone}") from None
        if "failed" in reply:
            raise UnfixError(f"lm-eval: {reply['failed']}")

    def end(self) -> None:
        """End the process; a thread that waits for a reply gets `ProcessEnded`."""
        self.piped_process.end()

    def close(self) -> None:
        self.end()
        self.piped_process.close()
