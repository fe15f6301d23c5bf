"""Servers that are forked from a process which has imported SGLang already."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import paths
from harness.serving.server import Server, ServerFailed, Setup


class House:
    """A process that has imported one SGLang, and forks servers; closed, nothing is left of it."""

    def __init__(self, setup: Setup, log: Path, seconds: float = 600.0) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        self._rest = b""
        there, self._write = os.pipe()
        self._read, back = os.pipe()
        given = {**os.environ, **setup.environment}
        found_by = [str(paths.PACKAGE.parent), str(paths.project())]
        rest = [given["PYTHONPATH"]] if given.get("PYTHONPATH") else []
        given |= {
            "PYTHONPATH": os.pathsep.join(dict.fromkeys([*found_by, *rest])),
            "PYTHONUNBUFFERED": "1",
            "UNFIX_RELEASE": setup.release,
            "UNFIX_HOME": str(paths.workspace()),
            "UNFIX_PLANNER": sys.executable,
        }
        for name in ("SGLANG_DEBUG_REVERT_PR", "SGLANG_DEBUG_ENABLE_PR", "UNFIX_REVERT"):
            given.pop(name, None)
        with open(log, "ab") as output:
            self._process = subprocess.Popen(
                [str(setup.python), "-m", "harness.serving.house", str(there), str(back)],
                env=given,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(there, back),
                start_new_session=True,
            )
        os.close(there)
        os.close(back)
        self._limit = seconds
        self._ready = False
        self._one_at_a_time = threading.Lock()

    def start(self, server: Server, words: Sequence[str]) -> int | None:
        """Fork a server; None if this house had been ready and is gone."""
        setup = server.setup
        asked = {
            "folder": str(server.folder.resolve()),
            "words": list(words),
            "environment": setup.environment,
            "revert": list(setup.revert),
            "enable": list(setup.enable),
            "folders": [str(folder.resolve()) for folder in setup.folders],
            "adaptations": list(setup.adaptations),
            "attestations": str(server.attestations.resolve()),
        }
        with self._one_at_a_time:
            self._wait()
            try:
                os.write(self._write, json.dumps(asked).encode() + b"\n")
                while (said := self._hear("started"))["folder"] != asked["folder"]:
                    pass  # somebody lost patience before it was started
                return int(said["started"])
            except (OSError, ServerFailed):
                return None

    def _wait(self) -> None:
        if not self._ready:
            self._hear("ready")
            self._ready = True

    def _hear(self, what: str) -> dict[str, Any]:
        ends = time.monotonic() + self._limit
        while b"\n" not in self._rest:
            left = ends - time.monotonic()
            if left <= 0 or not select.select([self._read], [], [], left)[0]:
                raise ServerFailed(f"SGLang was not imported within {self._limit:.0f} s")
            data = os.read(self._read, 1 << 16)
            if not data:
                raise ServerFailed(f"the process that imports SGLang ended: {self._tail()}")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        said: dict[str, Any] = json.loads(line)
        if what not in said:
            raise ServerFailed(f"SGLang cannot be imported here: {said.get('failed', said)}")
        return said

    def _tail(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1][:400] if lines else "it said nothing"

    def end(self) -> None:
        """End its processes; a thread that waits for it hears of that."""
        self._process.terminate()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def close(self) -> None:
        self.end()
        for end in (self._write, self._read):
            with contextlib.suppress(OSError):
                os.close(end)
        self._write = self._read = -1

    def __enter__(self) -> House:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
