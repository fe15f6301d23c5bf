"""lm-eval as an evaluation sees it: a process that is told which items to ask of which server."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import time
import venv
from pathlib import Path
from typing import Any

import msgspec

from harness import paths
from harness.errors import NotReady, UnfixError
from harness.serving.server import Server, ServerFailed
from harness.store.evaluations import Answer

PIN = "lm-eval[api]==0.4.13"
OURS = "unfix_"
FOLDER = paths.project() / "suites" / "accuracy"
TO_START = 180.0
AFTER_DEATH = 5.0  # seconds to hear what was answered before the server died


def python() -> Path:
    """A Python that has lm-eval: this one, or an environment of its own under .releases."""
    if importlib.util.find_spec("lm_eval") is not None:
        return Path(sys.executable)
    home = paths.releases() / "lm-eval"
    there = home / "bin" / "python"
    done = home / "unfix-complete.json"
    if done.is_file() and json.loads(done.read_text()).get("pin") == PIN:
        return there
    print(f"unfix: installing {PIN} (once)", file=sys.stderr)
    venv.create(home, clear=True, with_pip=True)
    words = [str(there), "-m", "pip", "install", "-q", "--disable-pip-version-check", PIN]
    got = subprocess.run(words, capture_output=True, text=True)
    if got.returncode:
        raise NotReady(f"lm-eval cannot be installed: {got.stderr.strip()[-600:]}")
    done.write_text(json.dumps({"pin": PIN}))
    return there


def name_of(task: str) -> str:
    """A task of ours by its short name, or one of lm-eval's."""
    return OURS + task if (FOLDER / f"{task}.yaml").is_file() else task


class Scorer:
    """One lm-eval process; serves one server at a time."""

    def __init__(self, log: Path, seed: int) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        self.seed = seed
        self._rest = b""
        self._count = 0
        there, self._write = os.pipe()
        self._read, back = os.pipe()
        given = {
            **os.environ,
            "PYTHONPATH": str(paths.PACKAGE.parent),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        if os.environ.get("PYTHONPATH"):
            given["PYTHONPATH"] += os.pathsep + os.environ["PYTHONPATH"]
        with open(log, "ab") as output:
            self._process = subprocess.Popen(
                [str(python()), "-m", "harness.evals.lm_side", str(there), str(back)],
                env=given,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(there, back),
                start_new_session=True,
            )
        os.close(there)
        os.close(back)
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
        seconds: float = 3600.0,
    ) -> list[Answer]:
        """The answers of a server to these items, scored; raises if nothing can be scored."""
        if not self._ready:
            self._hear(TO_START, None)
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
            "known": {
                "folder": str(FOLDER),
                "metadata": {"seed": self.seed, "items": items},
            },
            "out": str(out.resolve()),
        }
        os.write(self._write, json.dumps(asked).encode() + b"\n")
        self._hear(seconds, server)
        answers = msgspec.json.decode(out.read_bytes(), type=list[Answer])
        for task, numbers in samples.items():
            if numbers and not any(answer.task == task for answer in answers):
                raise UnfixError(f"the task {task} has no items")
        return answers

    def _hear(self, seconds: float, server: Server | None) -> dict[str, Any]:
        ends = time.monotonic() + seconds
        watched = [self._read] + ([server.handle] if server is not None else [])
        while b"\n" not in self._rest:
            left = ends - time.monotonic()
            ready = select.select(watched, [], [], max(0.0, left))[0]
            if server is not None and server.handle in ready:
                # What was asked fails by itself now, item by item.
                watched = [self._read]
                ends = min(ends, time.monotonic() + AFTER_DEATH + seconds / 10)
                continue
            if not ready:
                raise ServerFailed(f"no answers within {seconds:.0f} s")
            data = os.read(self._read, 1 << 16)
            if not data:
                raise NotReady(f"lm-eval ended: {self._tail()}")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        said: dict[str, Any] = json.loads(line)
        if "failed" in said:
            raise UnfixError(f"lm-eval: {said['failed']}")
        return said

    def _tail(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1][:400] if lines else "it said nothing"

    def close(self) -> None:
        for end in (self._write, self._read):
            with contextlib.suppress(OSError):
                os.close(end)
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
