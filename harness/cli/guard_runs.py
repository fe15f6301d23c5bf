"""The common part of the commands that run guards.

It resolves their options (releases, suites, tests at a time, memory of each), and makes the facts
that a run records at its start.
"""

from __future__ import annotations

import datetime
import difflib
import functools
import math
import os
import secrets
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from harness.cli import options
from harness.core import machine, paths
from harness.core.code_digest import (
    compute_digest,
    digest_code,
    iterate_files,
    iterate_pytest_settings,
    read_file,
)
from harness.core.device import get_environment
from harness.core.errors import UnfixError

if TYPE_CHECKING:
    from harness.fixes.registry.schema import Toggle
    from harness.releases.source_trees import SourceTree
    from harness.store.prove.values import ToggleFacts
    from harness.workers.release_target import ReleaseTarget

Number = TypeVar("Number", int, float)
RESERVED_MEMORY = 4 << 30  # bytes for everything except the tests
MAX_TESTS_PER_GPU = 6  # some tests take 16 GiB


def prepare_targets(
    words: list[str],
    device: str = "cpu",
    *,
    only_ready: bool = False,
    toggle_folders: Sequence[Path] = (),
    mends_toggles: bool = True,
) -> list[ReleaseTarget]:
    """Prepare the named releases, or else the newest one, and install them if need be.

    With `only_ready`, "all" and the newest one mean installed releases. Toggles that are stale on
    a release without a lock of ours are mended for the run, so load the catalogue after this;
    without `mends_toggles` the caller mends them for all releases of the run at once.
    """
    from harness.patching.child_environment import ChildEnvironment
    from harness.releases import added_releases, managed_releases, provisioning, source_trees
    from harness.workers.release_target import ReleaseTarget

    environment = get_environment(device)
    machine.require_device(environment)
    names = list(dict.fromkeys(name for word in words for name in word.split(",") if name))
    if "all" in names:
        known = managed_releases.list_releases(environment)
        names = [release.name for release in known if release.is_ready or not only_ready]
    if not names and source_trees.find_installed_tree() is not None:
        names = ["current"]
    elif not names:
        ready = managed_releases.find_default_release(environment) if only_ready else None
        names = [(ready or managed_releases.get_newest_release()).name]
    releases = {
        name: added_releases.find_release(name, environment, options.report_status)
        for name in names
        if name != "current"
    }
    provisioning.ensure_installed(list(releases.values()), options.report_status)
    targets = []
    for name in names:
        if name == "current":
            tree = managed_releases.open_release_tree(name)
            python = Path(sys.executable)
            targets.append(ReleaseTarget(str(tree.version or name), python, tree, name, device))
            continue
        release = releases[name]
        ChildEnvironment().require_release(release.python)  # refuses another SGLang's PYTHONPATH
        name = release.name
        targets.append(ReleaseTarget(name, release.python, release.open_sources(), name, device))
    counts = Counter(target.name for target in targets)
    if twice := next((name for name, count in counts.items() if count > 1), None):
        words = [word for word, target in zip(names, targets, strict=True) if target.name == twice]
        raise UnfixError(
            f"--release names SGLang {twice} twice: as {' and as '.join(map(repr, words))}"
        )
    if mends_toggles:
        mend_stale_toggles(
            [each.sources for name, each in zip(names, targets, strict=True) if name != "current"],
            toggle_folders,
        )
    return targets


def name_release(word: str | None, device: str = "cpu") -> str | None:
    """Return the name of the release that a word names; one named by a path is added first."""
    from harness.releases import added_releases, managed_releases

    if word is None or not managed_releases.is_path(word):
        return word
    environment = get_environment(device)
    return added_releases.find_release(word, environment, options.report_status).name


def mend_for_named_releases(
    names: Iterable[str | None], toggle_folders: Sequence[Path], device: str = "cpu"
) -> None:
    """Mend the toggles that are stale on any of these releases whose sources are here."""
    from harness.releases import managed_releases

    known = {
        release.name: release
        for release in managed_releases.list_known_releases(get_environment(device))
    }
    chosen = [known[name] for name in dict.fromkeys(names) if name in known]
    mend_stale_toggles([one.open_sources() for one in chosen if one.has_sources], toggle_folders)


def mend_for_named_tree(
    name: str | None, tree: SourceTree | None, toggle_folders: Sequence[Path]
) -> set[str]:
    """Mend the toggles that are stale on a release that a call names; return their ids."""
    from harness.fixes.registry import toggle_catalogue

    if tree is None or name in (None, "current"):
        return set()
    mend_stale_toggles([tree], toggle_folders)
    return {file.stem for file in toggle_catalogue.list_mended_files()}


def mend_stale_toggles(trees: Sequence[SourceTree], toggle_folders: Sequence[Path]) -> None:
    """Mend, for this run, the toggles that are stale on releases without a lock of ours."""
    from harness.releases import managed_releases

    supported = managed_releases.list_releases()
    names = {release.name for release in supported}
    added = [tree for tree in trees if tree.name not in names]
    if not added:
        return
    from harness.fixes.adopt import mended_toggles
    from harness.releases import provisioning

    toggles = mended_toggles.load_unmended_toggles(toggle_folders)
    stale = mended_toggles.find_stale_toggles(toggles, added)
    if not stale:
        return
    others = provisioning.open_repair_sources(added, options.report_status)
    mended = mended_toggles.mend_for_this_run(
        stale, added, others, toggle_folders, paths.state_folder() / "mended"
    )
    for line in (line for one in mended for line in one.describe()):
        options.report_status(line)
    named = " ".join(f"--release {tree.name}" for tree in added)
    options.report_status(
        f"`unfix drift --mend {named}` shows the mended forms, and --write keeps them"
    )


def report_suites(names: list[str]) -> None:
    """Say which suites the words of a call are."""
    root = paths.project_folder()
    places = {name: _resolve_suite(name) for name in names}
    options.report_meanings(
        {
            name: f"the suite {place.relative_to(root) if place.is_relative_to(root) else place}"
            for name, place in places.items()
        }
    )


def resolve_suites(names: list[str]) -> tuple[list[str], Path]:
    """Return pytest's arguments for these suites, and its working folder."""
    root = paths.project_folder()
    places = [_resolve_suite(name) for name in names] or [root / "suites"]
    files = [Path(str(place).partition("::")[0]) for place in places]
    folders = [file if file.is_dir() else file.parent for file in files]
    if all(folder.is_relative_to(root) for folder in folders):
        return [str(place.relative_to(root)) for place in places], root
    return [str(place) for place in places], Path(os.path.commonpath(folders))


def _resolve_suite(name: str) -> Path:
    file, colons, node = name.partition("::")
    for place in (
        paths.project_folder() / "suites" / file,
        Path(file).absolute(),
        paths.project_folder() / file,
    ):
        if place.exists():
            return Path(f"{place}{colons}{node}")
    folder = paths.project_folder() / "suites"
    known = sorted(each.name for each in folder.iterdir() if list(each.glob("test_*.py")))
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}? There are" if near else "there are"
    raise UnfixError(f"no suite matches '{name}': {hint} {', '.join(known)}, and paths of tests")


def check_positive(number: Number, option: str) -> Number:
    if not 0 < number < math.inf:
        raise UnfixError(f"{option} is a positive number, and not {number}")
    return number


def choose_job_count(device: str, requested: int | None = None) -> int:
    """Choose the number of parallel tests: one per core, and on a GPU as many as surely fit."""
    if requested is not None:
        return check_positive(requested, "-j")
    cores = len(os.sched_getaffinity(0))
    return cores if device != "cuda" else min(cores, MAX_TESTS_PER_GPU)


def choose_memory_limit(jobs: int, requested_gib: float | None = None) -> int:
    """Choose the memory limit of one test, so that all tests fit into the machine's memory."""
    if requested_gib is not None:
        return int(check_positive(requested_gib, "--memory") * 2**30)
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(2 << 30, (total - RESERVED_MEMORY) // (jobs + 1))


def digest_guards_and_toggles(toggle_folders: list[Path], guard_files: list[Path]) -> str:
    """Compute a digest of all code that the guards of a run depend on, SGLang's apart."""
    files = [file for place in toggle_folders for file in iterate_files(place)]
    files += [file for place in guard_files for file in _iterate_guard_inputs(place)]
    return compute_digest(digest_code("cli"), digest_project_guards(), _digest_files(files))


def digest_project_guards() -> str:
    """Hash the project's own suites and toggles; files that changed since are read again."""
    names = ("suites", "findings", "fixtures", "toggles", "conftest.py")
    places = [paths.project_folder() / name for name in names]
    files = [file for place in places for file in iterate_files(place)]
    return _digest_unchanged_files(tuple((file, _read_change_time(file)) for file in files))


@functools.lru_cache(maxsize=1)
def _digest_unchanged_files(files: tuple[tuple[Path, tuple[int, ...]], ...]) -> str:
    return _digest_files(file for file, _ in files)


def _read_change_time(file: Path) -> tuple[int, ...]:
    """Read what an edit changes: a program can set the first time back, but not the second."""
    status = file.stat()
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def _digest_files(files: Iterable[Path]) -> str:
    parts: list[str | bytes] = []
    for file in dict.fromkeys(files):
        parts += [str(file), read_file(file)]
    return compute_digest(*parts)


def _iterate_guard_inputs(place: Path) -> Iterator[Path]:
    """Iterate the files that the guards of a file or a folder depend on.

    They are those of the folder, or the file with the modules and packages beside it and the
    modules of the folders there; and each conftest.py and settings of pytest there and above.
    """
    place = place.resolve()  # the folders above a relative path end at the working directory
    yield from iterate_files(place)
    folder = place if place.is_dir() else place.parent
    if folder is not place:
        yield from sorted(folder.glob("*.py"))
        yield from sorted(folder.glob("*/*.py"))
        for package in sorted(folder.glob("*/__init__.py")):
            yield from iterate_files(package.parent)
    yield from iterate_pytest_settings(folder)


def digest_lane_code(target: ReleaseTarget, toggle_folders: list[Path]) -> str:
    """Digest the code of ours that a zoo or a rehearsal runs; '' if SGLang itself may change."""
    if target.requested_as == "current":
        return ""  # an installed SGLang can be edited under the same version
    return digest_guards_and_toggles(toggle_folders, [])


def make_id_and_start(prefix: str = "") -> tuple[str, str]:
    """Make the id of a run that starts now, such as 20260131-235959-a1b2, and its start."""
    now = datetime.datetime.now(datetime.UTC)
    started = now.isoformat(timespec="seconds")
    return f"{prefix}{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}", started


def make_toggle_facts(toggle: Toggle) -> ToggleFacts:
    from harness.store.prove.values import ToggleFacts

    return ToggleFacts(
        id=toggle.id,
        title=toggle.title,
        family=toggle.family,
        symptom=toggle.symptom.value,
        upstream=list(toggle.upstream),
        why=toggle.why.strip(),
    )
