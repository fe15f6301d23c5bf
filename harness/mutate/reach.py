"""Which guards run which lines of a release: recorded once, and kept until something changes.

What a guard runs is known from a run with nothing changed, whichever fault comes later: a fault
asks the guards that ran a line of its statement, and no others.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from harness import paths
from harness.mutate.faults import Fault
from harness.mutate.messages import PASSES
from harness.patching.instrument import FUNCTIONS, chain_to
from harness.patching.plan import position_of
from harness.releases.sources import SourceTree
from harness.store.records import Outcome


class Reached(msgspec.Struct):
    """A guard without any fault: what came of it, and the lines that it ran."""

    guard: str
    outcome: Outcome
    seconds: float
    headline: str = ""
    suite: str = ""  # digest of the folder that its file is in
    lines: dict[str, list[int]] = {}  # of SGLang's modules
    imported: list[str] = []  # modules that nobody had imported before it

    def runs(self, module: str, lines: range) -> bool:
        return any(line in lines for line in self.lines.get(module, ()))


class Reaches(msgspec.Struct):
    """All guards of a release, as they were when this was recorded."""

    key: str
    guards: dict[str, Reached] = {}

    @property
    def imported(self) -> list[str]:
        return sorted({name for reached in self.guards.values() for name in reached.imported})

    def lines(self) -> dict[str, set[int]]:
        """The lines of each module that any of them runs."""
        found: dict[str, set[int]] = {}
        for reached in self.guards.values():
            for module, lines in reached.lines.items():
                found.setdefault(module, set()).update(lines)
        return found


def lines_of(fault: Fault, text: str) -> range:
    """The lines that say whether a fault is reached.

    A function's header runs where the function is made; what it says (a default, an annotation)
    shows wherever its body runs.
    """
    line, column = position_of(text, fault.start)
    chain = list(chain_to(_parsed(text), line, column))
    last = chain[-1].statement if chain else None
    if isinstance(last, FUNCTIONS):
        return range(last.body[0].lineno, (last.end_lineno or last.lineno) + 1)
    return range(fault.first, fault.last + 1)


@functools.lru_cache(maxsize=4)
def _parsed(text: str) -> ast.Module:
    """Faults come module by module, and a large one takes a while."""
    return ast.parse(text)


def reaching(fault: Fault, text: str, reaches: Reaches) -> list[Reached]:
    lines = lines_of(fault, text)
    return [one for one in reaches.guards.values() if one.runs(fault.module, lines)]


def key(tree: SourceTree, profile: str) -> str:
    """What the whole record hangs on: what guards stand on, the release, the profile."""
    digest = hashlib.sha256(f"{profile}\0{tree.version}\0".encode())
    names = ("fixtures", "toggles", "harness/guards", "harness/checking")
    shared = [(paths.project() / "suites").glob("*.py")]
    for files in shared + [(paths.project() / name).rglob("*") for name in names]:
        _add(digest, files)
    # Thousands of files of a release: that none was touched is enough.
    for name in sorted(tree.files()):
        with contextlib.suppress(OSError):
            found = Path(tree.place(name)).stat()
            digest.update(f"{name}\0{found.st_size}\0{found.st_mtime_ns}\0".encode())
    return digest.hexdigest()[:16]


def suite_of(guard: str, place: Path) -> str:
    """What one guard hangs on besides: all that lies in its folder."""
    return _of_folder((place / guard.partition("::")[0]).parent)


@functools.cache
def _of_folder(folder: Path) -> str:
    digest = hashlib.sha256()
    _add(digest, folder.rglob("*"))
    return digest.hexdigest()[:16]


def _add(digest: hashlib._Hash, files: Iterable[Path]) -> None:
    for file in sorted(files):
        if file.suffix in (".py", ".yaml", ".json") and file.is_file():
            digest.update(str(file).encode() + b"\0" + file.read_bytes() + b"\0")


def file_of(release: str, profile: str, words: list[str]) -> Path:
    """One file for a release, a profile, and the guards that pytest is told to collect."""
    place = hashlib.sha256("\0".join(words).encode()).hexdigest()[:8]
    return paths.state() / "reach" / f"{release}-{profile}-{place}.json"


def load(file: Path, wanted: str, place: Path) -> Reaches:
    """What is known already, without what has changed since."""
    try:
        known = msgspec.json.decode(file.read_bytes(), type=Reaches)
    except (OSError, msgspec.MsgspecError):
        return Reaches(wanted)
    if known.key != wanted:
        return Reaches(wanted)
    known.guards = {
        name: one
        for name, one in known.guards.items()
        # One that failed is asked again: it may have been the machine.
        if one.outcome in PASSES and one.suite == suite_of(name, place)
    }
    return known


def save(file: Path, reaches: Reaches) -> None:
    """Whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_name(f"{file.name}.{os.getpid()}.part")
    aside.write_bytes(msgspec.json.encode(reaches))
    os.replace(aside, file)
