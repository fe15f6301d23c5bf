"""Starts fake servers as the engine starts real ones."""

from __future__ import annotations

import contextlib
import importlib
import json
import shlex
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from harness import paths
from harness.eval.asking import Where
from harness.eval.matrix import Configuration, FaultIn, Matrix
from harness.eval.run import Run, begin
from harness.eval.scorer import Scorer
from harness.serving.server import Server, Setup
from harness.store.eval.values import Evaluation

MODULE = "tests.eval.fake_server"
TOY = Path(__file__).parents[1] / "toy"
PYTHON = Path(sys.executable)


def being(**be: Any) -> str:
    """SGLang's arguments, for a fake that is to be like that."""
    return shlex.join(["--be", json.dumps(be)])


def questions(count: int, task: str = "recall") -> list[dict[str, str]]:
    """The items of a task as they are drawn, without lm-eval."""
    place = str(paths.project() / "fixtures" / "tasks")
    if place not in sys.path:
        sys.path.append(place)
    found: list[dict[str, str]] = importlib.import_module("items").items(task, 0, count)
    return found


def with_share(share: list[int], count: int) -> list[int]:
    """The items for which a share holds; see `fake_server`."""
    found = [zlib.crc32(one["prompt"].encode()) % share[0] < share[1] for one in questions(count)]
    return [number for number, holds in enumerate(found) if holds]


class Serve:
    """Fake servers, all of which are ended with the test."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.servers: list[Server] = []

    def __call__(self, *words: str, ready: bool = True, **be: Any) -> Server:
        asked = ("--be", json.dumps(be), *words)
        setup = Setup(PYTHON, asked, module=MODULE)
        server = Server(setup, self.root / f"server-{len(self.servers)}")
        self.servers.append(server)
        if ready:
            server.wait(20)
        return server

    def close(self) -> None:
        for server in self.servers:
            server.stop()


class Shared:
    """An lm-eval process that outlives a test; a new one where a test ended it."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._scorer: Scorer | None = None

    @property
    def scorer(self) -> Scorer:
        if self._scorer is not None and self._scorer.talking.process.poll() is not None:
            self._scorer.close()
            self._scorer = None
        if self._scorer is None:
            self._scorer = Scorer(self._log, 0)
        return self._scorer

    def close(self) -> None:
        if self._scorer is not None:
            self._scorer.close()


class Fakes:
    """A run over fake servers."""

    def __init__(self, root: Path, shared: Shared) -> None:
        self.root = root
        self.shared = shared
        self.said: list[str] = []
        self.device = "cpu"

    def where(self, **settings: Any) -> Where:
        folders = (TOY / "toggles",)
        return Where(
            self.device, "current", self.root, folders, True, 20.0, 5.0, MODULE, **settings
        )

    def prepared(
        self,
        *configurations: Configuration,
        faults: list[FaultIn] | None = None,
        limit: int = 200,
        **settings: Any,
    ) -> Run:
        settings = {"tasks": ["recall"], "items": 50, "device": "cpu", **settings}
        matrix = Matrix("fake", list(configurations), faults or [], **settings)
        where = self.where()
        new = begin(matrix, where, "eval-fake", "unfix eval")
        run = Run(
            matrix, where, new, jobs=1, limit=limit, saw=lambda _, what: self.said.append(what)
        )
        run.askers._scorers.put(self.shared.scorer)
        return run

    def run(self, *configurations: Configuration, **settings: Any) -> Evaluation:
        return self.prepared(*configurations, **settings).go()


def fake(name: str, against: str = "", like: str = "", **be: Any) -> Configuration:
    return Configuration(name, "llama", being(**be), against=against, like=like)


def eventually(what: Callable[[], bool], seconds: float = 5.0) -> bool:
    ends = time.monotonic() + seconds
    while not what():
        if time.monotonic() > ends:
            return False
        time.sleep(0.02)
    return True


def alive(pid: int) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def pids_in(file: Path) -> list[int]:
    """Those that a brood has written down so far."""
    return [int(pid) for pid in file.read_text().split()] if file.exists() else []


@contextlib.contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """A process that does not outlive a test that fails."""
    with process:
        try:
            yield process
        finally:
            process.kill()
