"""One process under check: its launcher, and the thread that listens for the bell."""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

from harness import compiled
from harness.checking import on_gpu
from harness.compiled import born
from harness.compiled.arena import Told
from harness.compiled.launching import REPORTS, Launched, Launcher
from harness.patching.boot import say
from harness.watch.others import Others
from harness.watch.reports import CHECKS, FOLDER, Kernel, Report, Writer

_LOOK = 0.002  # seconds between two looks at the bell
_COUNT = 1.0  # seconds between two writings of what was launched
_LIST = 10.0  # and of which libraries there are besides: it takes milliseconds to look
_RUNNER = "sglang.srt.model_executor.model_runner"

_lock = threading.Lock()
_process: _Process | None = None


def started() -> Launcher:
    global _process
    with _lock:
        if _process is None:
            _process = _Process(os.environ[CHECKS].split(","))
        return _process.launcher


class _Process:
    def __init__(self, words: list[str]) -> None:
        self._stops = "stop" in words
        checks = tuple(word for word in words if word != "stop") or compiled.CHECKS
        if "unwritten" in checks:
            born.follow()
        self._writer = Writer(Path(os.environ[FOLDER]))
        self._others = Others()
        self._began = time.monotonic()
        self._told: set[tuple[str, str, int, str]] = set()
        self._looking = threading.Lock()
        self._batch = ""
        self._hooked = False
        # Servers hand kernels the beginning of what they are to fill: a view's end is no bound.
        self.launcher = Launcher(checks, self._when, whole_storages=True)
        self.launcher.start()
        atexit.register(self._ends)
        threading.Thread(target=self._look_on, name="unfix check", daemon=True).start()

    def _look_on(self) -> None:
        counted, listed = 0.0, 0.0
        while True:
            self._look()
            now = time.monotonic()
            if now - counted > _COUNT:
                counted = now
                self._count()
            if now - listed > _LIST:
                listed = now
                self._writer.others(self._others.found())
            time.sleep(_LOOK)

    def _look(self) -> None:
        with self._looking:
            for record, launched in REPORTS.told():
                self._tell(record, launched)

    def _tell(self, record: Told, launched: Launched) -> None:
        while launched.compiled is None:  # the launch itself has yet to come back
            time.sleep(_LOOK)
        found = on_gpu.violation(record, launched)
        if found is None:
            return
        place = found.place
        assert place is not None
        key = (type(found).__name__, place.file, place.line, launched.kernel)
        if key in self._told:
            return
        self._told.add(key)
        details = found.details
        if launched.captured:
            details = (*details, f"in a graph that was captured then; now {self._batch}")
        report = Report(
            type(found).__name__,
            launched.kernel,
            place.file,
            place.line,
            place.text,
            place.program,
            found.headline,
            details,
            os.getpid(),
            round(time.monotonic() - self._began, 3),
        )
        self._writer.report(report)
        say(f"pid {os.getpid()}: {report}")
        if self._stops:
            self._count()
            say(f"pid {os.getpid()} is stopped at its first report")
            os._exit(1)

    def _count(self) -> None:
        tally = dict(self.launcher.tally)
        self._writer.kernels(
            {name: Kernel(one.launches, one.refused, one.unchecked) for name, one in tally.items()}
        )

    def _ends(self) -> None:
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:  # a lost device: what was told before lies in our memory
            say(f"pid {os.getpid()} lost its device: {str(error).splitlines()[0]}")
        self._look()
        self._count()
        self._writer.others(self._others.found())

    # What a server was about

    def _when(self) -> str:
        if not self._hooked and (module := sys.modules.get(_RUNNER)) is not None:
            runner = getattr(module, "ModelRunner", None)
            if runner is not None:
                self._hooked = True
                self._follow(runner)
        return self._batch

    def _follow(self, runner: Any) -> None:
        forward = runner.forward

        @functools.wraps(forward)
        def followed(own: Any, forward_batch: Any, *args: Any, **options: Any) -> Any:
            mode = getattr(getattr(forward_batch, "forward_mode", None), "name", "?")
            size = getattr(forward_batch, "batch_size", "?")
            self._batch = f"the last forward: {mode}, a batch of {size}"
            return forward(own, forward_batch, *args, **options)

        runner.forward = followed
