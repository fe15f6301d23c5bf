"""Where each toggle was proven: on which device and releases, and when, as recorded runs say."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from harness import paths
from harness.store.prove.values import Verdict


@dataclass(frozen=True)
class Proof:
    """A toggle on one kind of machine."""

    where: str  # CPU, or the GPU by its name
    releases: tuple[str, ...]  # from the oldest
    when: str  # the date of the newest of the runs

    def told(self, known: Sequence[str]) -> str:
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


# What of a record is looked at; `list` reads all of them each time.
class _Cell(msgspec.Struct):
    release: str
    device: str
    toggle: str
    verdict: Verdict | None = None


class _On(msgspec.Struct):
    release: str
    device: str
    machine: dict[str, msgspec.Raw] = {}


class _Run(msgspec.Struct):
    kind: str = ""
    started: str = ""
    releases: list[_On] = []
    cells: list[_Cell] = []


def proofs(known: Sequence[str], folder: Path | None = None) -> dict[str, list[Proof]]:
    """By toggle; releases in the order of those that are known. Later records are believed."""
    place = folder or paths.project() / "bench" / "recorded"
    runs = []
    for file in place.glob("prove-*.json"):
        with contextlib.suppress(msgspec.ValidationError):  # a record of something else
            runs.append(msgspec.json.decode(file.read_bytes(), type=_Run))
    latest: dict[tuple[str, str, str], tuple[bool, str]] = {}  # by toggle, machine, release
    for run in sorted((run for run in runs if run.kind == "prove"), key=lambda run: run.started):
        names = {(on.release, on.device): _machine(on) for on in run.releases}
        by_place: dict[tuple[str, str, str], list[_Cell]] = {}
        for cell in run.cells:
            where = names.get((cell.release, cell.device), cell.device)
            by_place.setdefault((cell.toggle, where, cell.release), []).append(cell)
        for key, cells in by_place.items():
            latest[key] = _proven(cells), run.started[:10]
    found: dict[str, list[Proof]] = {}
    for toggle, where in sorted({(toggle, where) for toggle, where, _ in latest}):
        on = {
            release: when
            for (one, machine, release), (well, when) in latest.items()
            if (one, machine) == (toggle, where) and well
        }
        if on:
            order = sorted(on, key=lambda release: known.index(release) if release in known else -1)
            found.setdefault(toggle, []).append(Proof(where, tuple(order), max(on.values())))
    return found


def _proven(cells: Iterable[_Cell]) -> bool:
    verdicts = {cell.verdict for cell in cells}
    return Verdict.PROVEN in verdicts and verdicts <= {Verdict.PROVEN, Verdict.NA}


def _machine(on: _On) -> str:
    """A GPU's name without its maker and its driver."""
    if on.device == "cpu":
        return "CPU"
    name = msgspec.json.decode(on.machine["gpu"]) if "gpu" in on.machine else ""
    return str(name).partition(",")[0].removeprefix("NVIDIA ") or on.device
