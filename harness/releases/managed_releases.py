"""The managed releases: which there are, what of each is on this machine, and its sources."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

from harness.core import paths
from harness.core.errors import NotReadyError, UnfixError
from harness.releases import checkouts, source_trees
from harness.releases.shared_torch import SharedTorch
from harness.releases.source_trees import FolderSourceTree, SourceTree, WheelSourceTree

LOCKS_FOLDER = paths.HARNESS_FOLDER / "releases" / "locks"
# Written last by an installation: an environment without it was cut short.
COMPLETION_MARKER = "unfix-complete.json"


@dataclass(frozen=True)
class Release:
    """One managed release, installed or not, beside a torch for one device."""

    name: str
    device: str = "cpu"

    @property
    def folder(self) -> Path:
        return paths.releases_folder() / (
            self.name + ("" if self.device == "cpu" else f"-{self.device}")
        )

    @property
    def base(self) -> Release:
        """What it stands in front of: torch, Triton and what the releases agree on."""
        return Release("base", self.device)

    @property
    def shared_torch(self) -> SharedTorch | None:
        """The torch of this machine that it shares; None for one with a torch of its own."""
        found = self.base._read_marker().get("beside")
        return SharedTorch(**found) if found else None

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def is_installed(self) -> bool:
        return (self.folder / COMPLETION_MARKER).is_file()

    @property
    def is_ready(self) -> bool:
        """Finished, and from today's locks; as is the base that it stands on."""
        return self.base.is_current() and self.is_current() and self.has_current_start_files()

    def is_current(self) -> bool:
        """Whether its environment was finished, from today's lock, for a Python that is there."""
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
        """Whether the files that find an engine are today's; they are laid down in no time."""
        mark, base = self._read_marker(), self.base._read_marker()
        return mark.get("start") == checkouts.compute_start_digest() and mark.get(
            "beside"
        ) == base.get("beside")

    def describe_installation(self, shared_torch: SharedTorch | None) -> dict[str, Any]:
        """What an environment that is made now is made from."""
        facts: dict[str, Any] = {
            "lock": _compute_lock_digest(self.lock_file),
            "start": checkouts.compute_start_digest(),
        }
        return facts | ({"beside": asdict(shared_torch)} if shared_torch else {})

    def has_same_python(self, other: Release) -> bool:
        """Whether both are for one Python."""
        if self.site_packages is None or other.site_packages is None:
            return False
        return self.site_packages.parent.name == other.site_packages.parent.name

    def _read_marker(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.folder / COMPLETION_MARKER).read_text())
        except (OSError, ValueError):
            return {}
        return found

    @property
    def lock_file(self) -> Path:
        return LOCKS_FOLDER / f"{self.name}.txt"

    @property
    def site_packages(self) -> Path | None:
        return next(self.folder.glob("lib/python*/site-packages"), None)

    def list_wheels(self) -> list[Path]:
        """Its wheels that are here: one a Python, unless it is for any."""
        return sorted((paths.releases_folder() / "wheels").glob(f"sglang-{self.name}-*.whl"))

    @property
    def any_wheel(self) -> Path | None:
        """A wheel to read its sources from, without an environment."""
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
            f"SGLang {self.name} is not here; `unfix releases add {self.name}` installs it, "
            f"`unfix releases add --sources {self.name}` fetches its sources alone"
        )


CPU_BASE = Release("base")  # of all that have a torch of their own, for the CPU
DEVICES = ("cpu", "cuda")


def _compute_lock_digest(lock: Path) -> str:
    return hashlib.sha256(lock.read_bytes()).hexdigest()


def list_releases(device: str = "cpu") -> list[Release]:
    """Every release with a lock file, oldest first."""
    names = [path.stem for path in LOCKS_FOLDER.glob("*.txt") if path.stem[0].isdigit()]
    return [Release(name, device) for name in sorted(names, key=Version)]


def get_newest_release() -> Release:
    return list_releases()[-1]


def get_release(name: str, device: str = "cpu") -> Release:
    for release in list_releases(device):
        if release.name == name:
            return release
    known = ", ".join(release.name for release in list_releases())
    raise UnfixError(f"'{name}' is no managed release; there are {known}, and 'current'")


def find_named_release(name_or_path: str | None) -> Release | None:
    """The managed release that a `--release` word names; none is named by a path or 'current'."""
    if (
        name_or_path is None
        or name_or_path == "current"
        or "/" in name_or_path
        or name_or_path.endswith(".whl")
    ):
        return None
    return get_release(name_or_path)


def find_default_release(device: str = "cpu") -> Release | None:
    """The newest release that is on this machine, with an environment if one has any."""
    known = list_releases(device)
    here = [r for r in known if r.is_ready] or [r for r in known if r.any_wheel]
    return here[-1] if here else None


def open_release_tree(name: str | None) -> SourceTree:
    """The sources a `--release` word stands for: 'current', a managed version, or a path."""
    if name is None:
        return open_default_tree()
    release = find_named_release(name)
    if release is not None:
        return release.open_sources()
    if name != "current":
        return source_trees.open_tree(Path(name))
    found = source_trees.find_installed_tree()
    if found is None:
        raise NotReadyError("no SGLang is installed in this interpreter: pip install sglang")
    return found


def open_default_tree() -> SourceTree:
    """The SGLang of this interpreter, or else the newest managed release on this machine."""
    found = source_trees.find_installed_tree()
    if found is not None:
        return found
    release = find_default_release()
    return (release or get_newest_release()).open_sources()
