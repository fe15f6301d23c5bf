"""A worker as a run sees it: started, told what to look at, listened to, ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import msgspec

from harness.mutate.messages import Order, Said, Setting
from harness.prove import messages, workers

FAREWELL = 1.0  # seconds to end by itself
LAST = 4000  # characters of a log worth showing


class WorkerProcess:
    """One process that imports a release and forks looks at faults."""

    def __init__(
        self, python: Path, setting: Setting, folders: list[Path], place: Path, log: Path
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        self.started = time.monotonic()
        self._rest = b""
        there, self._write = os.pipe()
        self.read_end, back = os.pipe()
        with open(log, "ab") as output:
            self.process = subprocess.Popen(
                [str(python), "-m", "harness.mutate.worker", json.dumps([there, back])],
                cwd=place,
                env=_environment(setting, folders),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(there, back),
                start_new_session=True,  # a Ctrl-C is ours to handle
            )
        os.close(there)
        os.close(back)

    def order(self, wanted: Order) -> None:
        # A worker that just died is noticed by its other end.
        with contextlib.suppress(BrokenPipeError):
            text = msgspec.json.encode(wanted) + b"\n"
            while text:
                text = text[os.write(self._write, text) :]

    def said(self) -> list[Said] | None:
        """What has come since; None once it is gone."""
        data = os.read(self.read_end, 1 << 20)
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [msgspec.json.decode(line, type=Said) for line in lines]

    def end(self) -> int:
        """End it and all below it; gives its exit code, negative for a signal."""
        with contextlib.suppress(OSError):
            os.close(self._write)
        try:
            code = self.process.wait(timeout=FAREWELL)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            code = self.process.wait()
        with contextlib.suppress(OSError):
            os.close(self.read_end)
        return code

    def last_words(self) -> str:
        try:
            return self.log.read_text(errors="replace")[-LAST:].strip()
        except OSError:
            return ""


def _environment(setting: Setting, folders: list[Path]) -> dict[str, str]:
    """That of a worker of the proof, with a setting of our own."""
    alike = messages.Setting(setting.release, setting.words, [], [], setting.folder, setting.device)
    text = msgspec.json.encode(setting).decode()
    return {**workers._environment(alike, folders), "UNFIX_WORKER": text}
