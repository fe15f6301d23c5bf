"""Where each toggle was proven: on which device and releases, and when, as recorded runs say."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from harness.core import paths
from harness.store.prove.values import CellVerdict


@dataclass(frozen=True)
class RecordedProof:
    """A toggle on one kind of machine."""

    where: str  # CPU, or the GPU by its name
    releases: tuple[str, ...]  # from the oldest
    when: str  # the date of the newest of the runs

    def describe(self, known: Sequence[str]) -> str:
        """Releases that follow one another, of all that are known, as one span."""
        spans: list[list[str]] = []
        for release in self.releases:
            place = known.index(release) if release in known else -1
            if spans and place > 0 and known[place - 1] == spans[-1][-1]:
                spans[-1].append(release)
            else:
                spans.append([release])
        words = [span[0] if len(span) == 1 else f"{span[0]} to {span[-1]}" for span in spans]
        return f"{self.where} {', '.join(words)} ({self.when})"


# What takes an earlier proof back; a run that could not tell says nothing of it.
DISPROVING_VERDICTS = {CellVerdict.TOOTHLESS, CellVerdict.UNREACHED, CellVerdict.STALE}


# What of a record is looked at; `list` reads all of them each time.
class _RecordedCell(msgspec.Struct):
    release: str
    device: str
    toggle: str
    verdict: CellVerdict | None = None


class _RecordedRelease(msgspec.Struct):
    release: str
    device: str
    machine: dict[str, msgspec.Raw] = {}


class _RecordedRun(msgspec.Struct):
    kind: str = ""
    started: str = ""
    releases: list[_RecordedRelease] = []
    cells: list[_RecordedCell] = []


def load_proofs(known: Sequence[str], folder: Path | None = None) -> dict[str, list[RecordedProof]]:
    """By toggle; releases in the order of those that are known. Later records are believed."""
    place = folder or paths.project_folder() / "bench" / "recorded"
    runs = []
    for file in place.glob("prove-*.json"):
        with contextlib.suppress(msgspec.ValidationError):  # a record of something else
            runs.append(msgspec.json.decode(file.read_bytes(), type=_RecordedRun))
    dates: dict[tuple[str, str], dict[str, str]] = {}  # by toggle and machine, of each release
    for run in sorted((run for run in runs if run.kind == "prove"), key=lambda run: run.started):
        names = {(on.release, on.device): _name_machine(on) for on in run.releases}
        verdicts: dict[tuple[str, str, str], set[CellVerdict | None]] = {}
        for cell in run.cells:
            where = names.get((cell.release, cell.device), cell.device)
            verdicts.setdefault((cell.toggle, where, cell.release), set()).add(cell.verdict)
        for (toggle, where, release), found in verdicts.items():
            on = dates.setdefault((toggle, where), {})
            if CellVerdict.PROVEN in found and found <= {CellVerdict.PROVEN, CellVerdict.NA}:
                on[release] = run.started[:10]
            elif found & DISPROVING_VERDICTS:
                on.pop(release, None)
    proofs: dict[str, list[RecordedProof]] = {}
    for (toggle, where), on in sorted(dates.items()):
        if on:
            order = sorted(on, key=lambda release: known.index(release) if release in known else -1)
            proofs.setdefault(toggle, []).append(
                RecordedProof(where, tuple(order), max(on.values()))
            )
    return proofs


def _name_machine(release: _RecordedRelease) -> str:
    """A GPU's name without its maker and its driver."""
    if release.device == "cpu":
        return "CPU"
    name = msgspec.json.decode(release.machine["gpu"]) if "gpu" in release.machine else ""
    return str(name).partition(",")[0].removeprefix("NVIDIA ") or release.device
