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
import stat
import subprocess
from collections.abc import Iterable
from pathlib import Path

import msgspec

from harness import paths
from harness.mutate.messages import PASSES
from harness.patching.instrument import FUNCTIONS, chain_to
from harness.patching.plan import position_of
from harness.prove.plan import Target
from harness.releases.sources import SourceTree
from harness.store.mutate.faults import Fault
from harness.store.prove.values import Outcome

LARGE = 1 << 20  # bytes; of a larger file it is enough that nobody touched it
# Of unfix itself, whatever decides which lines a guard runs, or whether they are seen.
STANDS_ON = ("guards", "checking", "kernels", "native", "patching", "matching", "fuzz")
INSTALLED = """
import importlib.metadata, sys
found = {f"{one.metadata['Name']} {one.version}" for one in importlib.metadata.distributions()}
print(sys.version, *sorted(found), sep="\\n")
"""


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


def key(target: Target, profile: str, toggles: Iterable[Path] = ()) -> str:
    """What the whole record hangs on: what guards stand on, the release, device and profile.

    `toggles` are further folders of them.
    """
    words = profile, target.device, _installed(target.python), release_of(target.tree)
    digest = hashlib.sha256("\0".join([*words, ""]).encode())
    root = paths.project()
    places = [root / "conftest.py", *sorted((root / "suites").glob("*.py")), root / "fixtures"]
    places += [paths.toggles(), *toggles, *(paths.PACKAGE / name for name in STANDS_ON)]
    for place in places:
        _add(digest, place)
    return digest.hexdigest()[:16]


def release_of(tree: SourceTree) -> str:
    """What sources a release has: thousands of files, so that none was touched is enough."""
    digest = hashlib.sha256(f"{tree.version}\0".encode())
    for name in sorted(tree.files()):
        with contextlib.suppress(OSError):
            found = Path(tree.place(name)).stat()
            digest.update(f"{name}\0{found.st_size}\0{found.st_mtime_ns}\0".encode())
    return digest.hexdigest()[:16]


def _installed(python: Path) -> str:
    """Every package of an environment with its version: Triton's, Hypothesis's, pytest's, ..."""
    return subprocess.run([python, "-c", INSTALLED], capture_output=True, text=True).stdout


def suite_of(guard: str, place: Path) -> str:
    """What one guard hangs on besides: all that lies in its folder."""
    return _of_folder((place / guard.partition("::")[0]).parent)


@functools.cache
def _of_folder(folder: Path) -> str:
    digest = hashlib.sha256()
    _add(digest, folder)
    return digest.hexdigest()[:16]


def _add(digest: hashlib._Hash, place: Path) -> None:
    """A file, or every file of a folder but what running it leaves there: caches, hidden ones."""
    for file in sorted(place.rglob("*")) if place.is_dir() else [place]:
        parts = file.relative_to(place).parts
        if any(part == "__pycache__" or part.startswith(".") for part in parts):
            continue
        with contextlib.suppress(OSError):
            found = file.stat()
            if stat.S_ISREG(found.st_mode):
                large = found.st_size > LARGE
                what = b"%d" % found.st_mtime_ns if large else file.read_bytes()
                digest.update(b"%b\0%d\0%b\0" % (str(file).encode(), found.st_size, what))


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
