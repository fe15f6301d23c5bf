"""A worker as a run sees it, and what the slices in it leave behind."""

from __future__ import annotations

import zlib

import msgspec

from harness.runs.fuzz.messages import ExampleNote, FoundFailure, FuzzWorkerMessage, TimeSliceResult
from harness.workers.worker_process import WorkerProcess


class FuzzWorkerProcess(WorkerProcess[FuzzWorkerMessage]):
    """One process that imports a release and forks slices of its tests."""

    module = "harness.runs.fuzz.worker"
    message_type = FuzzWorkerMessage

    def read_note(self, serial: int) -> ExampleNote | None:
        """The first line, behind its sum; nothing where it is just being written."""
        line, _, _ = self._read_file(serial, "note").partition(b"\n")
        sum_of, text = line[:8], line[8:]
        if b"%08x" % zlib.crc32(text) != sum_of:
            return None
        return msgspec.json.decode(text, type=ExampleNote)

    def read_result(self, serial: int) -> TimeSliceResult | None:
        text = self._read_file(serial, "sliced")
        return msgspec.json.decode(text, type=TimeSliceResult) if text else None

    def read_failures(self, serial: int) -> list[FoundFailure]:
        text = self._read_file(serial, "found")
        return msgspec.json.decode(text, type=list[FoundFailure]) if text else []

    def _read_file(self, serial: int, kind: str) -> bytes:
        try:
            return (self.folder / f"{serial}.{kind}").read_bytes()
        except FileNotFoundError:
            return b""

    def delete_files(self, serial: int) -> None:
        """A night has thousands of slices."""
        for file in self.folder.glob(f"{serial}.*"):
            if file.is_file():
                file.unlink(missing_ok=True)
