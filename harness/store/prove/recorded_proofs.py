"""The device, releases and date of each toggle's proofs, from the recorded runs."""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from harness.core import paths
from harness.core.cache import DiskCache
from harness.core.code_digest import compute_digest, digest_code
from harness.core.outcomes import Verdict
from harness.store.record_files import decompress_record

_CODE_DIGEST = digest_code("store")


@dataclass(frozen=True)
class RecordedProof:
    """The proof of a toggle on one kind of machine."""

    where: str  # 'CPU', or a GPU's name
    releases: tuple[str, ...]  # the oldest first
    when: str  # the date of the newest of the runs

    def restrict(self, releases: Container[str]) -> RecordedProof | None:
        """Return the proof on some of its releases; None if it is on none of them."""
        kept = tuple(release for release in self.releases if release in releases)
        return replace(self, releases=kept) if kept else None

    def describe(self, known: Sequence[str]) -> str:
        """Describe the proof. Consecutive ones of the known releases become one span."""
        spans: list[list[str]] = []
        for release in self.releases:
            place = known.index(release) if release in known else -1
            if spans and place > 0 and known[place - 1] == spans[-1][-1]:
                spans[-1].append(release)
            else:
                spans.append([release])
        words = [span[0] if len(span) == 1 else f"{span[0]} to {span[-1]}" for span in spans]
        return f"{self.where} {', '.join(words)} ({self.when})"


# Verdicts that withdraw an earlier proof; an inconclusive run does not.
DISPROVING_VERDICTS = {Verdict.TOOTHLESS, Verdict.UNREACHED, Verdict.STALE}


# The fields of a record that a proof needs.
class _RecordedCell(msgspec.Struct):
    release: str
    device: str
    toggle: str
    verdict: Verdict | None = None


class _RecordedRelease(msgspec.Struct):
    release: str
    device: str
    machine: dict[str, msgspec.Raw] = {}


class _RecordedRun(msgspec.Struct):
    kind: str = ""
    started: str = ""
    releases: list[_RecordedRelease] = []
    cells: list[_RecordedCell] = []


def proofs_folder() -> Path:
    """Return the folder of the recorded proofs, which the wheel contains."""
    return paths.project_folder() / "bench" / "recorded" / "proofs"


def load_proofs(known: Sequence[str], folder: Path | None = None) -> dict[str, list[RecordedProof]]:
    """Load the proofs by toggle, with releases in the known order. A later record wins.

    Decompressing and decoding seven megabytes costs 70 ms, so the result is cached by the bytes.
    """
    files = sorted((folder or proofs_folder()).glob("*.json.xz"))
    contents = [file.read_bytes() for file in files]
    cache: DiskCache[dict[str, list[RecordedProof]]]
    cache = DiskCache("proofs", dict[str, list[RecordedProof]], _CODE_DIGEST)
    key = compute_digest(*known, "", *contents)
    proofs = cache.get(key)
    if proofs is None:
        texts = [decompress_record(file, data) for file, data in zip(files, contents, strict=True)]
        proofs = cache.put(key, _summarize_proofs(known, texts))
        cache.save()
    return proofs


def _summarize_proofs(
    known: Sequence[str], texts: Iterable[bytes]
) -> dict[str, list[RecordedProof]]:
    runs = []
    for text in texts:
        with contextlib.suppress(msgspec.ValidationError):  # a record of another kind of run
            runs.append(msgspec.json.decode(text, type=_RecordedRun))
    dates: dict[tuple[str, str], dict[str, str]] = {}  # by toggle and machine, then by release
    for run in sorted((run for run in runs if run.kind == "prove"), key=lambda run: run.started):
        names = {(on.release, on.device): _name_machine(on) for on in run.releases}
        verdicts: dict[tuple[str, str, str], set[Verdict | None]] = {}
        for cell in run.cells:
            where = names.get((cell.release, cell.device), cell.device)
            verdicts.setdefault((cell.toggle, where, cell.release), set()).add(cell.verdict)
        for (toggle, where, release), found in verdicts.items():
            on = dates.setdefault((toggle, where), {})
            if Verdict.PROVEN in found and found <= {Verdict.PROVEN, Verdict.NA}:
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
    """Return a GPU's name without its maker and its driver."""
    if release.device == "cpu":
        return "CPU"
    name = msgspec.json.decode(release.machine["gpu"]) if "gpu" in release.machine else ""
    return str(name).partition(",")[0].removeprefix("NVIDIA ") or release.device
