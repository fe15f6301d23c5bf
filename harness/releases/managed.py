"""The managed releases: which there are, what of each is on this machine, and its sources."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from packaging.version import Version

from harness import paths
from harness.errors import NotReady, UnfixError
from harness.releases import sources
from harness.releases.sources import FolderTree, SourceTree, WheelTree

LOCKS = paths.PACKAGE / "releases" / "locks"
# Written last by an installation: an environment without it was cut short.
COMPLETE = "unfix-complete.json"


@dataclass(frozen=True)
class Release:
    """One managed release, installed or not."""

    name: str

    @property
    def folder(self) -> Path:
        return paths.releases() / self.name

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def installed(self) -> bool:
        return (self.folder / COMPLETE).is_file()

    @property
    def ready(self) -> bool:
        """Finished, from today's locks, and for this place; as is the base that it stands on."""
        base = is_current(paths.releases() / "base", facts(LOCKS / "base.txt"))
        return base and is_current(self.folder, self.facts())

    def facts(self) -> dict[str, str]:
        """What the environment was made from, the files that start toggles in it included."""
        here = paths.PACKAGE / "releases"
        how = b"".join((here / name).read_bytes() for name in ("install.py", "unfix_start.py"))
        return {**facts(self.lock), "how": hashlib.sha256(how).hexdigest()}

    @property
    def lock(self) -> Path:
        return LOCKS / f"{self.name}.txt"

    @cached_property
    def site(self) -> Path | None:
        return next(self.folder.glob("lib/python*/site-packages"), None)

    @property
    def wheel(self) -> Path | None:
        """The release's own wheel, kept for reading its sources without an environment."""
        return next((paths.releases() / "wheels").glob(f"sglang-{self.name}-*.whl"), None)

    def sources(self) -> SourceTree:
        if self.installed and self.site is not None:
            return FolderTree(self.site, self.name)
        if self.wheel is not None:
            return WheelTree(self.wheel, self.name)
        raise NotReady(
            f"SGLang {self.name} is not here; `unfix releases add {self.name}` installs it, "
            f"`unfix releases add --sources {self.name}` fetches its sources alone"
        )


def is_current(folder: Path, wanted: dict[str, str]) -> bool:
    """Whether an environment was finished, and from these facts."""
    try:
        data = json.loads((folder / COMPLETE).read_text())
    except (OSError, ValueError):
        return False
    return {key: data.get(key) for key in wanted} == wanted


def facts(lock: Path) -> dict[str, str]:
    """What an environment was made from; another lock, place or Python asks for another one."""
    return {
        "lock": hashlib.sha256(lock.read_bytes()).hexdigest(),
        "engine": str(paths.PACKAGE),
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
    }


def all_releases() -> list[Release]:
    """Every release with a lock file, oldest first."""
    names = [path.stem for path in LOCKS.glob("*.txt") if path.stem[0].isdigit()]
    return [Release(name) for name in sorted(names, key=Version)]


def newest() -> Release:
    return all_releases()[-1]


def get(name: str) -> Release:
    for release in all_releases():
        if release.name == name:
            return release
    known = ", ".join(release.name for release in all_releases())
    raise UnfixError(f"'{name}' is no managed release; there are {known}, and 'current'")


def default() -> Release | None:
    """The newest release that is on this machine, with an environment if one has any."""
    here = [r for r in all_releases() if r.ready] or [r for r in all_releases() if r.wheel]
    return here[-1] if here else None


def tree(name: str | None) -> SourceTree:
    """The sources a `--release` word stands for: 'current', a managed version, or a path."""
    if name is None:
        return default_tree()
    if name == "current":
        found = sources.current()
        if found is None:
            raise NotReady("no SGLang is installed in this interpreter: pip install sglang")
        return found
    if "/" in name or name.endswith(".whl"):
        return sources.open_tree(Path(name))
    return get(name).sources()


def default_tree() -> SourceTree:
    """The SGLang of this interpreter, or else the newest managed release on this machine."""
    found = sources.current()
    if found is not None:
        return found
    release = default()
    return (release or newest()).sources()
