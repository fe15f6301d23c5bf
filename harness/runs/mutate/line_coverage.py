"""The lines of a release that each guard runs, recorded once and valid until a change.

Each guard runs once on the unchanged release. A fault is then run only by the guards that ran a
line of its statement. A record is valid for one digest of every guard's dependencies
(`compute_coverage_key`), and each guard in it for a digest of its own suite. Example: a new file
under suites/kv_indices makes the guards of that suite run again; a new version of Triton makes all
guards run again.
"""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from harness.core import machine, paths
from harness.core.code_digest import digest_code, iterate_files, iterate_pytest_settings
from harness.core.cpp_scopes import CppSource
from harness.core.cpp_tokens import is_cpp_path
from harness.core.files import write_atomically
from harness.core.outcomes import Outcome
from harness.fixes.patch_plan import get_position
from harness.patching.instrumentation import FUNCTION_NODES, iterate_enclosing_statements
from harness.releases import source_trees
from harness.runs.mutate.cpp_code import CppModuleCode, find_function
from harness.runs.mutate.messages import PASSING_OUTCOMES
from harness.store.mutate.faults import MutationFault
from harness.workers.release_target import ReleaseTarget


class GuardCoverage(msgspec.Struct):
    """The outcome of a guard without a fault, and the lines that it ran."""

    guard: str
    outcome: Outcome
    seconds: float
    headline: str = ""
    example: list[str] = []  # the smallest failing example, a line each
    suite: str = ""  # digest of its file's folder
    lines: dict[str, list[int]] = {}  # lines of SGLang's modules
    imported: list[str] = []  # modules that this guard imports first
    stand_ins: dict[str, int] = {}
    observed: str = ""  # what it saw beside its outcome, a line each

    def has_run(self, module: str, lines: range) -> bool:
        return any(line in lines for line in self.lines.get(module, ()))


class CoverageRecord(msgspec.Struct):
    """The coverage of all guards on a release."""

    key: str
    guards: dict[str, GuardCoverage] = {}
    collected: list[str] = []  # the guards of a whole collection
    suites: str = ""  # digest of all suites when that was

    @property
    def imported(self) -> list[str]:
        return sorted({name for guard in self.guards.values() for name in guard.imported})

    def collect_lines(self) -> dict[str, set[int]]:
        """Collect the lines of each module that some guard runs."""
        covered: dict[str, set[int]] = {}
        for guard in self.guards.values():
            for module, lines in guard.lines.items():
                covered.setdefault(module, set()).update(lines)
        return covered


def find_deciding_lines(fault: MutationFault, text: str) -> range:
    """Return the lines of a fault's statement; a guard that runs one of them reaches the fault.

    The header of a nested function runs at its definition, but a default value takes effect when
    the body runs. So for a fault in a default the lines of the body decide. Of a C++ source the
    lines of launched kernels are recorded, where statements share lines or have none once they are
    optimized: a kernel's whole function decides, and for host code the whole file.
    """
    if is_cpp_path(fault.module):
        return _find_launched_lines(fault, text)
    line, column = get_position(text, fault.start)
    chain = list(iterate_enclosing_statements(_parse_cached(text), line, column))
    last = chain[-1].statement if chain else None
    if isinstance(last, FUNCTION_NODES):
        return range(last.body[0].lineno, (last.end_lineno or last.lineno) + 1)
    return range(fault.first, fault.last + 1)


def _find_launched_lines(fault: MutationFault, text: str) -> range:
    code = CppModuleCode(CppSource(fault.module, fault.path, text))
    function = find_function(code, fault)
    return function.lines if function.is_kernel else range(1, text.count("\n") + 2)


@functools.lru_cache(maxsize=4)
def _parse_cached(text: str) -> ast.Module:
    """Parse a module, cached, since many faults share one and a large module parses slowly."""
    return ast.parse(text)


def find_reaching_guards(
    fault: MutationFault, text: str, coverage: CoverageRecord
) -> list[GuardCoverage]:
    lines = find_deciding_lines(fault, text)
    return [guard for guard in coverage.guards.values() if guard.has_run(fault.module, lines)]


def compute_coverage_key(
    target: ReleaseTarget, profile: str, toggle_folders: Iterable[Path] = ()
) -> str:
    """Compute a digest of every guard's dependencies: our code, the release, its packages."""
    words = (
        digest_code("runs"),
        profile,
        target.device,
        machine.list_installed_packages(target.python),
        source_trees.digest_sources(target.sources),
    )
    digest = hashlib.sha256("\0".join([*words, ""]).encode())
    root = paths.project_folder()
    places = [root / "conftest.py", *sorted((root / "suites").glob("*.py")), root / "fixtures"]
    places += [paths.toggles_folder(), *toggle_folders]
    for place in places:
        _add_to_digest(digest, place)
    return digest.hexdigest()[:16]


def digest_suite(guard: str, root: Path) -> str:
    """Compute a digest of all files in the folder of a guard, and of pytest's settings above."""
    return _digest_suite_folder((root / guard.partition("::")[0]).parent)


def digest_suites(root: Path) -> str:
    """Compute a digest of all suites of the project, or of a folder of suites elsewhere."""
    suites = root / "suites"
    return _digest_suite_folder(suites if suites.is_dir() else root)


@functools.cache
def _digest_suite_folder(folder: Path) -> str:
    digest = hashlib.sha256()
    for place in (folder, *iterate_pytest_settings(folder.resolve())):
        _add_to_digest(digest, place)
    return digest.hexdigest()[:16]


def _add_to_digest(digest: hashlib._Hash, place: Path) -> None:
    """Add a file, or all files of a folder except caches and hidden files."""
    for file in iterate_files(place):
        content = file.read_bytes()
        digest.update(b"%b\0%d\0%b\0" % (str(file).encode(), len(content), content))


def get_coverage_file(release: str, profile: str, pytest_arguments: list[str]) -> Path:
    """Return the file for a release, a profile, and pytest's arguments."""
    place = hashlib.sha256("\0".join(pytest_arguments).encode()).hexdigest()[:8]
    return paths.state_folder() / "reach" / f"{release}-{profile}-{place}.json"


def load_coverage(
    file: Path, expected_key: str, root: Path, with_failures: bool = False
) -> CoverageRecord:
    """Load the part of a stored record that is still valid."""
    try:
        coverage = msgspec.json.decode(file.read_bytes(), type=CoverageRecord)
    except (OSError, msgspec.MsgspecError):
        return CoverageRecord(expected_key)
    if coverage.key != expected_key:
        return CoverageRecord(expected_key)
    coverage.guards = {
        name: guard
        for name, guard in coverage.guards.items()
        # A guard that failed runs again, since the machine may have been the cause.
        if (with_failures or guard.outcome in PASSING_OUTCOMES)
        and guard.suite == digest_suite(name, root)
    }
    return coverage


def save_coverage(file: Path, coverage: CoverageRecord) -> None:
    write_atomically(file, msgspec.json.encode(coverage))
