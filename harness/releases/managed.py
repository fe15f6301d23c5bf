"""The managed releases: which there are, what of each is on this machine, and its sources."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

from harness import paths
from harness.errors import NotReady, UnfixError
from harness.releases import engines, sources
from harness.releases.beside import Beside
from harness.releases.sources import FolderTree, SourceTree, WheelTree

LOCKS = paths.PACKAGE / "releases" / "locks"
# Written last by an installation: an environment without it was cut short.
COMPLETE = "unfix-complete.json"


@dataclass(frozen=True)
class Release:
    """One managed release, installed or not, beside a torch for one device."""

    name: str
    device: str = "cpu"

    @property
    def folder(self) -> Path:
        return paths.releases() / (self.name + ("" if self.device == "cpu" else f"-{self.device}"))

    @property
    def base(self) -> Release:
        """What it stands in front of: torch, Triton and what the releases agree on."""
        return Release("base", self.device)

    @property
    def beside(self) -> Beside | None:
        """The torch of this machine that it shares; None for one with a torch of its own."""
        found = self.base._mark().get("beside")
        return Beside(**found) if found else None

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def installed(self) -> bool:
        return (self.folder / COMPLETE).is_file()

    @property
    def ready(self) -> bool:
        """Finished, and from today's locks; as is the base that it stands on."""
        return self.base.is_current() and self.is_current() and self.start_is_current()

    def is_current(self) -> bool:
        """Whether its environment was finished, from today's lock, for a Python that is there."""
        if self._mark().get("lock") != _digest(self.lock) or not self.python.exists():
            return False
        if self != self.base:
            return self.like(self.base)
        return self.device == "cpu" or (self.beside is not None and self.beside.is_there())

    def start_is_current(self) -> bool:
        """Whether the files that find an engine are today's; they are laid down in no time."""
        mark, base = self._mark(), self.base._mark()
        return mark.get("start") == engines.digest() and mark.get("beside") == base.get("beside")

    def facts(self, beside: Beside | None) -> dict[str, Any]:
        """What an environment that is made now is made from."""
        facts: dict[str, Any] = {"lock": _digest(self.lock), "start": engines.digest()}
        return facts | ({"beside": asdict(beside)} if beside else {})

    def like(self, other: Release) -> bool:
        """Whether both are for one Python."""
        if self.site is None or other.site is None:
            return False
        return self.site.parent.name == other.site.parent.name

    def _mark(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.folder / COMPLETE).read_text())
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


BASE = Release("base")  # of all that have a torch of their own, for the CPU
DEVICES = ("cpu", "cuda")


def _digest(lock: Path) -> str:
    return hashlib.sha256(lock.read_bytes()).hexdigest()


def all_releases(device: str = "cpu") -> list[Release]:
    """Every release with a lock file, oldest first."""
    names = [path.stem for path in LOCKS.glob("*.txt") if path.stem[0].isdigit()]
    return [Release(name, device) for name in sorted(names, key=Version)]


def newest() -> Release:
    return all_releases()[-1]


def get(name: str, device: str = "cpu") -> Release:
    for release in all_releases(device):
        if release.name == name:
            return release
    known = ", ".join(release.name for release in all_releases())
    raise UnfixError(f"'{name}' is no managed release; there are {known}, and 'current'")


def named(word: str | None) -> Release | None:
    """The managed release that a `--release` word names; none is named by a path or 'current'."""
    if word is None or word == "current" or "/" in word or word.endswith(".whl"):
        return None
    return get(word)


def default(device: str = "cpu") -> Release | None:
    """The newest release that is on this machine, with an environment if one has any."""
    known = all_releases(device)
    here = [r for r in known if r.ready] or [r for r in known if r.wheel]
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
