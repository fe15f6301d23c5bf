"""A file of known reports that a suite accepts, each with a reason: `--sanitize-baseline=FILE`.

An entry is a report's kind, kernel, file and source text; line numbers move with each change. What
the file accepts fails no test. An entry without a reason is a wrong call, and one whose report is
gone, though its kernel ran, fails the run: it would hide the next fault of that line. A file that
does not exist is written with the reports of the run, for the reasons to be filled in.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.core.files import write_atomically


@dataclass(frozen=True, slots=True)
class KnownReport:
    kind: str
    kernel: str
    file: str
    text: str
    reason: str = ""

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.kind, self.kernel, self.file, self.text


class Baseline:
    def __init__(self, file: Path | None) -> None:
        """Read the file; raises ValueError for an entry that it cannot use."""
        self._file = file
        self._is_new = file is not None and not file.exists()
        self.entries: dict[tuple[str, ...], KnownReport] = {}
        if file is None or self._is_new:
            return
        try:
            known = [KnownReport(**entry) for entry in json.loads(file.read_text())]
        except (TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"{file}: {error}") from None
        for entry in known:
            if not entry.reason.strip():
                raise ValueError(f"{file}: {entry.kind} of {entry.kernel} has no reason")
            self.entries[entry.key] = entry

    def find_reason(self, report: Mapping[str, Any]) -> str:
        """Return why a report is accepted; '' if it is not."""
        known = self.entries.get(_make_entry(report).key)
        return known.reason if known else ""

    def list_gone(
        self, reports: Iterable[Mapping[str, Any]], kernels: Iterable[str]
    ) -> list[KnownReport]:
        """List the entries without a report, of kernels that ran."""
        found, ran = {_make_entry(report).key for report in reports}, set(kernels)
        return [
            entry
            for key, entry in self.entries.items()
            if key not in found and entry.kernel.partition(" ")[0] in ran
        ]

    def write_new(self, reports: Iterable[Mapping[str, Any]]) -> bool:
        """Write the reports of a first run; return whether it was one."""
        if self._file is None or not self._is_new:
            return False
        entries = {entry.key: asdict(entry) for entry in map(_make_entry, reports)}
        write_atomically(self._file, json.dumps([*entries.values()], indent=1) + "\n")
        return True


def _make_entry(report: Mapping[str, Any]) -> KnownReport:
    return KnownReport(report["kind"], report["kernel"], report["file"], report["text"])
