"""What a command needs of the releases, had before it goes on: said first, with how much it is."""

from __future__ import annotations

from collections.abc import Sequence

from harness.releases import install, managed, sources
from harness.releases.install import SHARED, Say, size
from harness.releases.managed import BASE, Release
from harness.releases.sources import SourceTree

# On disk, as measured: a release, and a wheel alone.
RELEASE = 0.2e9
WHEEL = 15e6


def ready(releases: Sequence[Release], say: Say) -> None:
    """Have these releases installed."""
    if not releases:
        return
    base = releases[0].base
    shared = 0.0 if base.is_current() else SHARED[base.device]
    missing = [one for one in releases if shared or not one.is_current()]
    if missing:
        torch = ", with torch" if shared and base == BASE else ""
        say(f"installing {_named(missing)} ({size(shared + RELEASE * len(missing))}{torch})")
    for release in releases:
        install.add(release, say)


def read(releases: Sequence[Release], say: Say) -> list[SourceTree]:
    """The sources of these releases, fetched where they are not here."""
    missing = [one for one in releases if not one.has_sources]
    if missing:
        say(f"fetching the sources of {_named(missing)} ({size(WHEEL * len(missing))})")
    for release in missing:
        install.add_sources(release, say)
    return [release.sources() for release in releases]


def tree(word: str | None, say: Say) -> SourceTree:
    """The sources that a `--release` word stands for; of the newest release if none is here."""
    if word is None and sources.current() is None:
        return read([managed.default() or managed.newest()], say)[0]
    release = managed.named(word)
    return managed.tree(word) if release is None else read([release], say)[0]


def _named(releases: Sequence[Release]) -> str:
    if len(releases) > 3:
        return f"{len(releases)} releases"
    return f"SGLang {', '.join(release.name for release in releases)}"
