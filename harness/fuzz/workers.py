"""A worker as a run sees it, and what the slices in it leave behind."""

from __future__ import annotations

import zlib

import msgspec

from harness.fuzz.values import Found, Note, Said, Sliced
from harness.prove.workers import WorkerProcess


class SliceWorker(WorkerProcess[Said]):
    """One process that imports a release and forks slices of its tests."""

    module = "harness.fuzz.worker"
    says = Said

    def note(self, serial: int) -> Note | None:
        """The first line, behind its sum; nothing where it is just being written."""
        line, _, _ = self._left(serial, "note").partition(b"\n")
        sum_of, text = line[:8], line[8:]
        if b"%08x" % zlib.crc32(text) != sum_of:
            return None
        return msgspec.json.decode(text, type=Note)

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
