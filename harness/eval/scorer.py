"""lm-eval as an evaluation sees it: a process that is told which items to ask of which server."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import subprocess
import sys
import threading
import venv
from pathlib import Path

import msgspec

from harness import paths
from harness.errors import NotReady, UnfixError
from harness.eval import lm_side
from harness.eval.matrix import FURTHER, TASKS
from harness.serving.server import Server, ServerFailed
from harness.serving.talking import Gone, Silent, Talking
from harness.store.eval.values import Answer

PIN = "lm-eval[api]==0.4.13"
MARKER = "unfix-complete.json"  # written last
OURS = "unfix_"
FOLDER = paths.project() / "fixtures" / "tasks"
TO_START = 180.0
AFTER_DEATH = 30.0  # seconds to hear what was answered before the server died
SPARE = 60.0  # and to score what was answered


_installing = threading.Lock()


def python() -> Path:
    """A Python that has lm-eval: this one, or an environment of its own under .releases."""
    if importlib.util.find_spec("lm_eval") is not None:
        return Path(sys.executable)
    home = paths.releases() / "lm-eval"
    there = home / "bin" / "python"
    if not _installed(home):
        home.parent.mkdir(parents=True, exist_ok=True)
        with _installing, open(home.parent / ".lm-eval.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _installed(home):  # somebody else may have done it
                _install(home)
    return there


def _installed(home: Path) -> bool:
    try:
        marked = json.loads((home / MARKER).read_text())
    except (OSError, ValueError):
        return False
    return bool(marked == {"pin": PIN} and (home / "bin" / "python").exists())


def _install(home: Path) -> None:
    print(f"unfix: installing {PIN} (once)", file=sys.stderr)
    try:
        venv.create(home, clear=True, with_pip=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise NotReady(f"lm-eval cannot be installed: {error}") from error
    words = ["-m", "pip", "install", "-q", "--disable-pip-version-check", PIN]
    got = subprocess.run([str(home / "bin" / "python"), *words], capture_output=True, text=True)
    if got.returncode:
        raise NotReady(f"lm-eval cannot be installed: {got.stderr.strip()[-600:]}")
    (home / MARKER).write_text(json.dumps({"pin": PIN}))


def name_of(task: str) -> str:
    """A task of ours by its short name, or one of lm-eval's."""
    return OURS + task if task in (*TASKS, *FURTHER) else task


class Scorer:
    """One lm-eval process; serves one server at a time."""

    def __init__(self, log: Path, seed: int) -> None:
        self.seed = seed
        self._count = 0
        given = {
            **os.environ,
            "PYTHONPATH": str(paths.PACKAGE.parent),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        if os.environ.get("PYTHONPATH"):
            given["PYTHONPATH"] += os.pathsep + os.environ["PYTHONPATH"]
        self.talking = Talking([str(python()), "-m", "harness.eval.lm_side"], given, log)
        self._ready = False

    def ask(
        self,
        server: Server,
        samples: dict[str, list[int]],
        *,
        items: int,
        concurrency: int,
        model: str,
        tokenizer: str | None = None,
        limit: float = lm_side.SECONDS,
        seconds: float = 3600.0,
    ) -> list[Answer]:
        """The answers of a server to these items, scored; raises if nothing can be scored.

        A request gets so many seconds (`limit`), and all of them together (`seconds`).
        """
        if not self._ready:
            self._hear(TO_START)
            self._ready = True
        self._count += 1
        out = server.folder / f"answers-{self._count}.json"
        asked = {
            "url": server.url,
            "model": model,
            "tokenizer": tokenizer,
            "tasks": list(samples),
            "samples": samples,
            "seed": self.seed,
            "concurrency": concurrency,
            "limit": limit,
            "seconds": seconds,
            "known": {
                "folder": str(FOLDER),
                "metadata": {"seed": self.seed, "items": items},
            },
            "out": str(out.resolve()),
        }
        try:
            self.talking.say(asked)
        except Gone as gone:
            raise NotReady(f"lm-eval ended: {gone}") from None
        self._hear(limit + seconds + SPARE, server.handle.fileno())
        return msgspec.convert(json.loads(out.read_bytes()), list[Answer])

    def _hear(self, seconds: float, server: int | None = None) -> None:
        """Once the server has died, what was asked fails by itself, item by item."""
        try:
            said = self.talking.hear(seconds, server, AFTER_DEATH)
        except Silent as silent:
            raise ServerFailed(f"no answers within {silent}") from None
        except Gone as gone:
            raise NotReady(f"lm-eval ended: {gone}") from None
        if "failed" in said:
            raise UnfixError(f"lm-eval: {said['failed']}")

    def end(self) -> None:
        """End its process; a thread that waits for it hears of that."""
        self.talking.end()

    def close(self) -> None:
        self.end()
        self.talking.close()
