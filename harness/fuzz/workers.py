"""A worker as a run sees it: started, given slices, listened to, ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import msgspec

from harness.fuzz.values import Found, Note, Said, Setting, Slice, Sliced
from harness.prove import messages, workers

FAREWELL = 1.0  # seconds to end by itself
LAST = 4000  # characters of a log worth showing


class WorkerProcess:
    """One process that imports a release and forks slices of its tests."""

    def __init__(
        self, python: Path, setting: Setting, folders: list[Path], place: Path, log: Path
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.folder = Path(setting.folder)
        self.log = log
        self.started = time.monotonic()
        self._rest = b""
        there, self._write = os.pipe()
        self.read_end, back = os.pipe()
        with open(log, "ab") as output:
            self.process = subprocess.Popen(
                [str(python), "-m", "harness.fuzz.worker", json.dumps([there, back])],
                cwd=place,
                env=environment(setting, folders),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(there, back),
                start_new_session=True,  # a Ctrl-C is ours to handle
            )
        os.close(there)
        os.close(back)

    def order(self, wanted: Slice) -> None:
        # A worker that just died is noticed by its other end.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._write, msgspec.json.encode(wanted) + b"\n")

    def said(self) -> list[Said] | None:
        """What has come since; None once it is gone."""
        data = os.read(self.read_end, 1 << 20)
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [msgspec.json.decode(line, type=Said) for line in lines]

    def note(self, serial: int) -> Note | None:
        text = self._left(serial, "note")
        return msgspec.json.decode(text, type=Note) if text else None

    def sliced(self, serial: int) -> Sliced | None:
        text = self._left(serial, "sliced")
        return msgspec.json.decode(text, type=Sliced) if text else None

    def found(self, serial: int) -> list[Found]:
        text = self._left(serial, "found")
        return msgspec.json.decode(text, type=list[Found]) if text else []

    def _left(self, serial: int, kind: str) -> bytes:
        try:
            return (self.folder / f"{serial}.{kind}").read_bytes()
        except FileNotFoundError:
            return b""

    def forget(self, serial: int) -> None:
        """A night has thousands of slices."""
        for file in self.folder.glob(f"{serial}.*"):
            if file.is_file():
                file.unlink(missing_ok=True)

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


def environment(setting: Setting, folders: list[Path]) -> dict[str, str]:
    """That of a worker of the proof, with a setting of our own."""
    alike = messages.Setting(setting.release, setting.words, [], [], setting.folder, setting.device)
    text = msgspec.json.encode(setting).decode()
    return {**workers._environment(alike, folders), "UNFIX_WORKER": text}
