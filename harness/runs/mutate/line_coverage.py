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

from harness.core import paths
from harness.core.code_digest import digest_code
from harness.fixes.patch_plan import get_position
from harness.patching.instrumentation import FUNCTION_NODES, iterate_enclosing_statements
from harness.releases.source_trees import SourceTree
from harness.runs.mutate.messages import PASSING_OUTCOMES
from harness.store.mutate.faults import MutationFault
from harness.store.prove.values import SideOutcome
from harness.workers.release_target import ReleaseTarget

LARGE_FILE_BYTES = 1 << 20  # bytes; of a larger file it is enough that nobody touched it
LIST_PACKAGES_SCRIPT = """
import importlib.metadata, sys
found = {f"{one.metadata['Name']} {one.version}" for one in importlib.metadata.distributions()}
print(sys.version, *sorted(found), sep="\\n")
"""


class GuardCoverage(msgspec.Struct):
    """A guard without any fault: what came of it, and the lines that it ran."""

    guard: str
    outcome: SideOutcome
    seconds: float
    headline: str = ""
    suite: str = ""  # digest of the folder that its file is in
    lines: dict[str, list[int]] = {}  # of SGLang's modules
    imported: list[str] = []  # modules that nobody had imported before it

    def has_run(self, module: str, lines: range) -> bool:
        return any(line in lines for line in self.lines.get(module, ()))


class CoverageRecord(msgspec.Struct):
    """All guards of a release, as they were when this was recorded."""

    key: str
    guards: dict[str, GuardCoverage] = {}

    @property
    def imported(self) -> list[str]:
        return sorted({name for reached in self.guards.values() for name in reached.imported})

    def collect_lines(self) -> dict[str, set[int]]:
        """The lines of each module that any of them runs."""
        found: dict[str, set[int]] = {}
        for reached in self.guards.values():
            for module, lines in reached.lines.items():
                found.setdefault(module, set()).update(lines)
        return found


def find_deciding_lines(fault: MutationFault, text: str) -> range:
    """The lines that say whether a fault is reached.

    A function's header runs where the function is made; what it says (a default, an annotation)
    shows wherever its body runs.
    """
    line, column = get_position(text, fault.start)
    chain = list(iterate_enclosing_statements(_parse_cached(text), line, column))
    last = chain[-1].statement if chain else None
    if isinstance(last, FUNCTION_NODES):
        return range(last.body[0].lineno, (last.end_lineno or last.lineno) + 1)
    return range(fault.first, fault.last + 1)


@functools.lru_cache(maxsize=4)
def _parse_cached(text: str) -> ast.Module:
    """Faults come module by module, and a large one takes a while."""
    return ast.parse(text)


def find_reaching_guards(
    fault: MutationFault, text: str, coverage: CoverageRecord
) -> list[GuardCoverage]:
    lines = find_deciding_lines(fault, text)
    return [one for one in coverage.guards.values() if one.has_run(fault.module, lines)]


def compute_coverage_key(
    target: ReleaseTarget, profile: str, toggle_folders: Iterable[Path] = ()
) -> str:
    """What the whole record hangs on: what guards stand on, the release, device and profile.

    `toggles` are further folders of them.
    """
    words = (
        digest_code("runs"),
        profile,
        target.device,
        _list_installed_packages(target.python),
        digest_release_sources(target.sources),
    )
    digest = hashlib.sha256("\0".join([*words, ""]).encode())
    root = paths.project_folder()
    places = [root / "conftest.py", *sorted((root / "suites").glob("*.py")), root / "fixtures"]
    places += [
        paths.toggles_folder(),
        *toggle_folders,
    ]
    for place in places:
        _add_to_digest(digest, place)
    return digest.hexdigest()[:16]


def digest_release_sources(tree: SourceTree) -> str:
    """What sources a release has: thousands of files, so that none was touched is enough."""
    digest = hashlib.sha256(f"{tree.version}\0".encode())
    for name in sorted(tree.iterate_files()):
        with contextlib.suppress(OSError):
            found = Path(tree.describe_location(name)).stat()
            digest.update(f"{name}\0{found.st_size}\0{found.st_mtime_ns}\0".encode())
    return digest.hexdigest()[:16]


def _list_installed_packages(python: Path) -> str:
    """Every package of an environment with its version: Triton's, Hypothesis's, pytest's, ..."""
    return subprocess.run(
        [python, "-c", LIST_PACKAGES_SCRIPT], capture_output=True, text=True
    ).stdout


def digest_suite(guard: str, root: Path) -> str:
    """What one guard hangs on besides: all that lies in its folder."""
    return _digest_folder((root / guard.partition("::")[0]).parent)


@functools.cache
def _digest_folder(folder: Path) -> str:
    digest = hashlib.sha256()
    _add_to_digest(digest, folder)
    return digest.hexdigest()[:16]


def _add_to_digest(digest: hashlib._Hash, path: Path) -> None:
    """A file, or every file of a folder but what running it leaves there: caches, hidden ones."""
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        parts = file.relative_to(path).parts
        if any(part == "__pycache__" or part.startswith(".") for part in parts):
            continue
        with contextlib.suppress(OSError):
            found = file.stat()
            if stat.S_ISREG(found.st_mode):
                large = found.st_size > LARGE_FILE_BYTES
                what = b"%d" % found.st_mtime_ns if large else file.read_bytes()
                digest.update(b"%b\0%d\0%b\0" % (str(file).encode(), found.st_size, what))


def get_coverage_file(release: str, profile: str, pytest_arguments: list[str]) -> Path:
    """One file for a release, a profile, and the guards that pytest is told to collect."""
    place = hashlib.sha256("\0".join(pytest_arguments).encode()).hexdigest()[:8]
    return paths.state_folder() / "reach" / f"{release}-{profile}-{place}.json"


def load_coverage(file: Path, expected_key: str, root: Path) -> CoverageRecord:
    """What is known already, without what has changed since."""
    try:
        known = msgspec.json.decode(file.read_bytes(), type=CoverageRecord)
    except (OSError, msgspec.MsgspecError):
        return CoverageRecord(expected_key)
    if known.key != expected_key:
        return CoverageRecord(expected_key)
    known.guards = {
        name: one
        for name, one in known.guards.items()
        # One that failed is asked again: it may have been the machine.
        if one.outcome in PASSING_OUTCOMES and one.suite == digest_suite(name, root)
    }
    return known


def save_coverage(file: Path, coverage: CoverageRecord) -> None:
    """Whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_name(f"{file.name}.{os.getpid()}.part")
    aside.write_bytes(msgspec.json.encode(coverage))
    os.replace(aside, file)
