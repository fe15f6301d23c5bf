"""The managed releases: which there are, what of each is on this machine, and its sources."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from harness import paths
from harness.errors import NotReady, UnfixError
from harness.releases import engines, sources
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
        """Finished, and from today's locks; as is the base that it stands on."""
        return BASE.is_current() and self.is_current() and self.start_is_current()

    def is_current(self) -> bool:
        """Whether its environment was finished, from today's lock, for a Python that is there."""
        made_from = self._mark().get("lock") == _digest(self.lock)
        return made_from and self.python.exists() and (self == BASE or self.like(BASE))

    def start_is_current(self) -> bool:
        """Whether the files that find an engine are today's; they are laid down in no time."""
        return self._mark().get("start") == engines.digest()

    def facts(self) -> dict[str, str]:
        """What an environment that is made now is made from."""
        return {"lock": _digest(self.lock), "start": engines.digest()}

    def like(self, other: Release) -> bool:
        """Whether both are for one Python."""
        if self.site is None or other.site is None:
            return False
        return self.site.parent.name == other.site.parent.name

    def _mark(self) -> dict[str, str]:
        try:
            found: dict[str, str] = json.loads((self.folder / COMPLETE).read_text())
        except (OSError, ValueError):
            return {}
        return found

    @property
    def lock(self) -> Path:
        return LOCKS / f"{self.name}.txt"

    @property
    def site(self) -> Path | None:
        return next(self.folder.glob("lib/python*/site-packages"), None)

    def wheels(self) -> list[Path]:
        """Its wheels that are here: one a Python, unless it is for any."""
        return sorted((paths.releases() / "wheels").glob(f"sglang-{self.name}-*.whl"))

    @property
    def wheel(self) -> Path | None:
        """A wheel to read its sources from, without an environment."""
        return next(iter(self.wheels()), None)

    @property
    def has_sources(self) -> bool:
        return self.installed or self.wheel is not None

    def sources(self) -> SourceTree:
        if self.installed and self.site is not None:
            return FolderTree(self.site, self.name)
        if self.wheel is not None:
            return WheelTree(self.wheel, self.name)
        raise NotReady(
            f"SGLang {self.name} is not here; `unfix releases add {self.name}` installs it, "
            f"`unfix releases add --sources {self.name}` fetches its sources alone"
        )


# What every release stands in front of: torch, Triton and what the releases agree on.
BASE = Release("base")


def _digest(lock: Path) -> str:
    return hashlib.sha256(lock.read_bytes()).hexdigest()


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


def named(word: str | None) -> Release | None:
    """The managed release that a `--release` word names; none is named by a path or 'current'."""
    if word is None or word == "current" or "/" in word or word.endswith(".whl"):
        return None
    return get(word)


def default() -> Release | None:
    """The newest release that is on this machine, with an environment if one has any."""
    here = [r for r in all_releases() if r.ready] or [r for r in all_releases() if r.wheel]
    return here[-1] if here else None


def tree(name: str | None) -> SourceTree:
    """The sources a `--release` word stands for: 'current', a managed version, or a path."""
    if name is None:
        return default_tree()
    release = named(name)
    if release is not None:
        return release.sources()
    if name != "current":
        return sources.open_tree(Path(name))
    found = sources.current()
    if found is None:
        raise NotReady("no SGLang is installed in this interpreter: pip install sglang")
    return found


def default_tree() -> SourceTree:
    """The SGLang of this interpreter, or else the newest managed release on this machine."""
    found = sources.current()
    if found is not None:
        return found
    release = default()
    return (release or newest()).sources()
