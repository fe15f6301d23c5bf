"""Starts fake servers in the way in which the engine starts real ones."""

from __future__ import annotations

import contextlib
import importlib
import json
import shlex
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import calling

from harness.core import paths
from harness.matrices.schema import EvaluationConfiguration, FaultPlacement, MatrixFile
from harness.runs.eval.lm_eval_scorer import LmEvalScorer
from harness.runs.eval.runner import EvaluationRunner, begin_evaluation
from harness.runs.eval.serving_job import ServingSettings
from harness.store.eval.values import Evaluation
from harness.workers.servers.server import ServerSetup, SglangServer

MODULE = "tests.eval.fake_server"
TOY = Path(__file__).parents[1] / "toy"
PYTHON = Path(sys.executable)


def make_server_arguments(**be: Any) -> str:
    """Return SGLang's arguments for a fake with these faults."""
    return shlex.join(["--be", json.dumps(be)])


def draw_questions(count: int, task: str = "recall") -> list[dict[str, str]]:
    """Return the items of a task as drawn, without lm-eval."""
    place = str(paths.project_folder() / "fixtures" / "tasks")
    if place not in sys.path:
        sys.path.append(place)
    found: list[dict[str, str]] = importlib.import_module("items").make_items(task, 0, count)
    return found


def write_fake_lm_eval(folder: Path, code: str) -> Path:
    """Write a Python that runs this code instead of lm-eval after its first request, then waits."""
    script, python = folder / "fake_lm_eval.py", folder / "python"
    script.write_text(
        "import os, sys, time\n"
        "os.write(int(sys.argv[2]), b'{\"ready\": 1}\\n')\n"
        f"os.read(int(sys.argv[1]), 65536)\n{code}\ntime.sleep(600)\n"
    )
    python.write_text(f'#!/bin/sh\nexec {PYTHON} {script} "$3" "$4"\n')
    python.chmod(0o755)
    return python


def with_share(share: list[int], count: int) -> list[int]:
    """Return the items to which a share applies; see `fake_server`."""
    found = [
        zlib.crc32(one["prompt"].encode()) % share[0] < share[1] for one in draw_questions(count)
    ]
    return [number for number, holds in enumerate(found) if holds]


class FakeServers:
    """Fake servers, all of which end with the test."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.servers: list[SglangServer] = []

    def __call__(self, *words: str, ready: bool = True, **be: Any) -> SglangServer:
        arguments = ("--be", json.dumps(be), *words)
        setup = ServerSetup(PYTHON, arguments, module=MODULE)
        server = SglangServer(setup, self.root / f"server-{len(self.servers)}")
        self.servers.append(server)
        if ready:
            server.wait_until_ready(calling.PATIENCE_SECONDS)
        return server

    def close(self) -> None:
        for server in self.servers:
            server.stop()


class SharedLmEval:
    """An lm-eval process that outlives a test; a new one if a test ended it."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._scorer: LmEvalScorer | None = None

    @property
    def scorer(self) -> LmEvalScorer:
        if self._scorer is not None and self._scorer.piped_process.process.poll() is not None:
            self._scorer.close()
            self._scorer = None
        if self._scorer is None:
            self._scorer = LmEvalScorer(self._log, 0)
        return self._scorer

    def close(self) -> None:
        if self._scorer is not None:
            self._scorer.close()


class Fakes:
    """A run over fake servers."""

    def __init__(self, root: Path, shared: SharedLmEval) -> None:
        self.root = root
        self.shared = shared
        self.device = "cpu"
        self.request_timeout = calling.PATIENCE_SECONDS

    def where(self, **settings: Any) -> ServingSettings:
        limits = (calling.PATIENCE_SECONDS, self.request_timeout)
        first = (self.device, "current", self.root, (TOY / "toggles",), True, *limits, MODULE)
        return ServingSettings(*first, **settings)

    def prepare_run(
        self,
        *configurations: EvaluationConfiguration,
        faults: list[FaultPlacement] | None = None,
        limit: int = 200,
        **settings: Any,
    ) -> EvaluationRunner:
        settings = {"tasks": ["recall"], "items": 50, "device": "cpu", **settings}
        matrix = MatrixFile("fake", list(configurations), faults or [], **settings)
        where = self.where()
        new = begin_evaluation(matrix, where, "eval-fake", "unfix eval")
        run = EvaluationRunner(matrix, where, new, jobs=1, max_items=limit)
        run.servers._idle_scorers.put(self.shared.scorer)
        return run

    def run(self, *configurations: EvaluationConfiguration, **settings: Any) -> Evaluation:
        return self.prepare_run(*configurations, **settings).execute()


def make_fake(name: str, against: str = "", like: str = "", **be: Any) -> EvaluationConfiguration:
    words = make_server_arguments(**be)
    return EvaluationConfiguration(name, "llama", words, against=against, like=like)


def read_pids(file: Path) -> list[int]:
    """Return the process ids that a brood has written so far."""
    return [int(pid) for pid in file.read_text().split()] if file.exists() else []


@contextlib.contextmanager
def ended_at_exit(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Kill a process at the end of the test, even if that fails."""
    with process:
        try:
            yield process
        finally:
            process.kill()
