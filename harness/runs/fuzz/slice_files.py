"""The files that a slice writes in its worker's folder, as others read them.

A slice that failed in a process that had run others runs again in a new one. Example: it found the
failures a and b; each example runs once more, and only a fails again. Then a is the slice's
failure, its examples and lines are those of both runs, and b is reported as not repeated.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from harness.core.added_counts import add_counts
from harness.core.files import write_atomically
from harness.core.outcomes import Outcome
from harness.runs.fuzz.messages import ExampleNote, TimeSliceResult
from harness.store.fuzz.values import FoundFailure
from harness.store.prove.values import SideResult

_PASSING_OUTCOMES = (Outcome.PASSED, Outcome.NA, Outcome.SKIPPED)


class SliceFiles:
    """The files of one slice; each may be missing."""

    def __init__(self, folder: Path, serial: int) -> None:
        self._folder = folder
        self._serial = serial

    def read_note(self) -> ExampleNote | None:
        """Read the note, checked by its checksum; None while the slice is writing it."""
        line, _, _ = self._read("note").partition(b"\n")
        checksum, text = line[:8], line[8:]
        if b"%08x" % zlib.crc32(text) != checksum:
            return None
        return msgspec.json.decode(text, type=ExampleNote)

    @contextlib.contextmanager
    def mark_waiting(self) -> Iterator[None]:
        """Tell the run that the slice waits for a process meanwhile."""
        file = self._folder / f"{self._serial}.waits"
        file.touch()
        try:
            yield
        finally:
            file.unlink(missing_ok=True)

    @property
    def is_waiting(self) -> bool:
        return (self._folder / f"{self._serial}.waits").exists()

    def read_result(self) -> TimeSliceResult | None:
        text = self._read("sliced")
        return msgspec.json.decode(text, type=TimeSliceResult) if text else None

    def read_failures(self) -> list[FoundFailure]:
        text = self._read("found")
        return msgspec.json.decode(text, type=list[FoundFailure]) if text else []

    def list_failing_examples(self, side: SideResult) -> dict[str, str]:
        """Return the blob of each failure by its key; a process's death counts by its outcome."""
        failing = {failure.key: failure.blob for failure in self.read_failures()}
        note = self.read_note()
        has_died = self.read_result() is None
        if has_died and note is not None and note.is_running:
            failing[side.outcome.value] = note.blob
        elif not failing and side.outcome not in _PASSING_OUTCOMES:
            failing[side.outcome.value] = ""  # it failed outside of any example
        return failing

    def merge_repeat(self, first: TimeSliceResult | None, failures: list[FoundFailure]) -> None:
        """Add the result of a first run to that of its repetitions, whose failures count."""
        if failures:
            self._write("found", list({failure.key: failure for failure in failures}.values()))
        second = self.read_result()
        if first is not None and second is not None:
            covered = {file: set(lines) for file, lines in first.covered_lines.items()}
            for file, lines in second.covered_lines.items():
                covered.setdefault(file, set()).update(lines)
            second.covered_lines = {file: sorted(lines) for file, lines in covered.items()}
            second.examples += first.examples
            second.seconds += first.seconds
            second.compile_seconds += first.compile_seconds
            for label, value in first.targets.items():
                second.targets[label] = max(value, second.targets.get(label, value))
            second.known_failure_counts = add_counts(
                first.known_failure_counts, second.known_failure_counts
            )
            second.stand_ins = add_counts(first.stand_ins, second.stand_ins)
            self._write("sliced", second)

    def read_all(self) -> dict[str, bytes]:
        """Read the content of each file, by its kind."""
        files = self._folder.glob(f"{self._serial}.*")
        return {file.suffix[1:]: file.read_bytes() for file in files if file.is_file()}

    def write_all(self, content: dict[str, bytes]) -> None:
        for kind, text in content.items():
            write_atomically(self._folder / f"{self._serial}.{kind}", text)

    def delete(self) -> None:
        """Delete the files, since a night has thousands of slices."""
        for file in self._folder.glob(f"{self._serial}.*"):
            if file.is_file():
                file.unlink(missing_ok=True)

    def _read(self, kind: str) -> bytes:
        file = self._folder / f"{self._serial}.{kind}"
        return file.read_bytes() if file.exists() else b""

    def _write(self, kind: str, value: object) -> None:
        write_atomically(self._folder / f"{self._serial}.{kind}", msgspec.json.encode(value))
