"""The managed releases: known versions, their state on this machine and their sources."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from harness.core import paths
from harness.core.errors import NotReadyError, UnfixError
from harness.releases import checkouts, source_trees
from harness.releases.shared_torch import SharedTorch
from harness.releases.source_trees import FolderSourceTree, SourceTree, WheelSourceTree

LOCKS_FOLDER = paths.HARNESS_FOLDER / "releases" / "locks"
# Written last by an installation; an environment without it is incomplete.
COMPLETION_MARKER = "unfix-complete.json"
ADDED_RECORD = "release.json"  # what a release without a lock of ours was added from


@dataclass(frozen=True)
class Release:
    """One managed release for one device, installed or not."""

    name: str
    device: str = "cpu"

    @property
    def folder(self) -> Path:
        return paths.releases_folder() / (
            self.name + ("" if self.device == "cpu" else f"-{self.device}")
        )

    @property
    def base(self) -> Release:
        """The shared base: torch, Triton and the dependencies that all releases share."""
        return Release("base", self.device)

    @property
    def shared_torch(self) -> SharedTorch | None:
        """The torch of this machine that the base shares; None if the base has its own."""
        facts = self.base._read_marker().get("beside")
        return SharedTorch(**facts) if facts else None

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def is_installed(self) -> bool:
        return (self.folder / COMPLETION_MARKER).is_file()

    @property
    def is_ready(self) -> bool:
        """Whether it and its base are complete and match the current lock and start files."""
        return self.base.is_current() and self.is_current() and self.has_current_start_files()

    def is_current(self) -> bool:
        """Return whether its environment is complete, matches its lock and has a usable Python."""
        if (
            self._read_marker().get("lock") != _compute_lock_digest(self.lock_file)
            or not self.python.exists()
        ):
            return False
        if self != self.base:
            return self.has_same_python(self.base)
        return self.device == "cpu" or (
            self.shared_torch is not None and self.shared_torch.is_unchanged()
        )

    def has_current_start_files(self) -> bool:
        """Return whether the start files are current; rewriting them takes milliseconds."""
        mark, base = self._read_marker(), self.base._read_marker()
        return mark.get("start") == checkouts.compute_start_digest() and mark.get(
            "beside"
        ) == base.get("beside")

    def describe_installation(self, shared_torch: SharedTorch | None) -> dict[str, Any]:
        """Return the contents of the completion marker of an environment that is installed now."""
        facts: dict[str, Any] = {
            "lock": _compute_lock_digest(self.lock_file),
            "start": checkouts.compute_start_digest(),
        }
        return facts | ({"beside": asdict(shared_torch)} if shared_torch else {})

    def has_same_python(self, other: Release) -> bool:
        """Return whether both use the same Python version."""
        if self.site_packages is None or other.site_packages is None:
            return False
        return self.site_packages.parent.name == other.site_packages.parent.name

    def _read_marker(self) -> dict[str, Any]:
        try:
            facts: dict[str, Any] = json.loads((self.folder / COMPLETION_MARKER).read_text())
        except (OSError, ValueError):
            return {}
        return facts

    @property
    def lock_file(self) -> Path:
        """Its lock: one of ours, or else the one that is solved when it is installed."""
        own = LOCKS_FOLDER / f"{self.name}.txt"
        return own if own.exists() else self.added_folder / "lock.txt"

    @property
    def added_folder(self) -> Path:
        """The folder of a release that has no lock of ours: its record, lock and wheel."""
        return paths.releases_folder() / "added" / self.name

    @property
    def site_packages(self) -> Path | None:
        return next(self.folder.glob("lib/python*/site-packages"), None)

    def list_wheels(self) -> list[Path]:
        """List its wheels on this machine, one for each Python version or one for all."""
        own = sorted(self.added_folder.glob("*.whl"))
        return own or sorted((paths.releases_folder() / "wheels").glob(f"sglang-{self.name}-*.whl"))

    @property
    def any_wheel(self) -> Path | None:
        """A wheel to read its sources from."""
        return next(iter(self.list_wheels()), None)

    @property
    def has_sources(self) -> bool:
        return self.is_installed or self.any_wheel is not None

    def open_sources(self) -> SourceTree:
        if self.is_installed and self.site_packages is not None:
            return FolderSourceTree(self.site_packages, self.name)
        if self.any_wheel is not None:
            return WheelSourceTree(self.any_wheel, self.name)
        raise NotReadyError(
            f"SGLang {self.name} is not installed; `unfix releases add {self.name}` installs it, "
            f"`unfix releases add --sources {self.name}` fetches only its sources"
        )


CPU_BASE = Release("base")
DEVICES = ("cpu", "cuda")


def _compute_lock_digest(lock: Path) -> str:
    """Hash a lock; '' before it is solved, which no environment matches."""
    return hashlib.sha256(lock.read_bytes()).hexdigest() if lock.exists() else ""


def list_releases(device: str = "cpu") -> list[Release]:
    """List every release with a lock of ours, oldest first: those that `all` means."""
    names = [path.stem for path in LOCKS_FOLDER.glob("*.txt") if path.stem[0].isdigit()]
    return [Release(name, device) for name in sorted(names, key=Version)]


def list_known_releases(device: str = "cpu") -> list[Release]:
    """List the releases with a lock of ours and those added here, oldest first, then commits."""
    records = (paths.releases_folder() / "added").glob(f"*/{ADDED_RECORD}")
    added = [Release(record.parent.name, device) for record in records]
    return sorted([*list_releases(device), *added], key=_make_sort_key)


def _make_sort_key(release: Release) -> tuple[bool, Version, str]:
    try:
        return False, Version(release.name), ""
    except InvalidVersion:
        return True, Version("0"), release.name


def get_newest_release() -> Release:
    return list_releases()[-1]


def get_release(name: str, device: str = "cpu") -> Release:
    for release in list_known_releases(device):
        if release.name == name:
            return release
    known = ", ".join(release.name for release in list_known_releases())
    raise UnfixError(
        f"'{name}' is no managed release; there are {known}, and 'current'. "
        f"`unfix releases add {name}` adds a version of the package index, and "
        "`unfix releases add PATH` a wheel, a checkout, or a commit of one (PATH@COMMIT)"
    )


def find_named_release(name_or_path: str | None) -> Release | None:
    """Find the managed release that a `--release` word names; None for a path and for 'current'."""
    if name_or_path is None or name_or_path == "current" or is_path(name_or_path):
        return None
    return get_release(name_or_path)


def is_path(word: str) -> bool:
    """Return whether a word names a wheel, a checkout or a commit of one, and no version."""
    if "/" in word or word.startswith("~") or word.endswith(".whl") or word in (".", ".."):
        return True
    name = word.partition("@")[0]  # a checkout in this folder, by its name; "" would be this folder
    return name != "" and word != "current" and Path(name, ".git").exists()


def find_default_release(device: str = "cpu") -> Release | None:
    """Find the newest installed release, or else the newest with sources on this machine."""
    known = list_releases(device)
    available = [r for r in known if r.is_ready] or [r for r in known if r.has_sources]
    return available[-1] if available else None


def open_release_tree(name: str | None) -> SourceTree:
    """Open the sources that a `--release` word names: 'current', a managed version, or a path."""
    if name is None:
        return open_default_tree()
    release = find_named_release(name)
    if release is not None:
        return release.open_sources()
    if name != "current":
        return source_trees.open_tree(Path(name).expanduser())
    tree = source_trees.find_installed_tree()
    if tree is None:
        raise NotReadyError("no SGLang is installed in this interpreter: pip install sglang")
    return tree


def open_default_tree() -> SourceTree:
    """Open the SGLang of this interpreter, or else the newest managed release on this machine."""
    tree = source_trees.find_installed_tree()
    if tree is not None:
        return tree
    release = find_default_release()
    return (release or get_newest_release()).open_sources()


def find_import_folders(python: str | Path) -> dict[str, list[Path]]:
    """Return where a managed release's Python finds SGLang and the packages below it.

    Empty for any other Python. A stand-in takes the place of a package that the machine lacks. The
    base, which reads kernels of all releases, has no SGLang.
    """
    folder = Path(python).parent.parent
    release = next((each for each in _list_all() if each.folder == folder), None)
    if release is None:
        return {}
    own = [each.site_packages for each in (release, release.base) if each.site_packages]
    shared = release.shared_torch
    own += [Path(folder) for folder in (shared.folders if shared else ())]
    standins = [paths.HARNESS_FOLDER / "releases" / name for name in ("standins", "standins_cuda")]
    return {
        "sglang": [] if release == release.base else [*own[:1]],
        "sgl_kernel": [*own, *standins],
        "triton": [*own, *standins],
        "torch": own,
    }


def _list_all() -> list[Release]:
    found = [release for device in DEVICES for release in list_known_releases(device)]
    return [*found, *(Release("base", device) for device in DEVICES)]
