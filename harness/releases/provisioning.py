"""Installs or fetches the releases that a command needs; reports the size beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from packaging.version import Version

from harness.core import paths
from harness.core.disk_progress import report_written_bytes
from harness.core.errors import NotReadyError
from harness.releases import installer, managed_releases, source_trees
from harness.releases.installer import BASE_BYTES, ReportMessage, format_size
from harness.releases.managed_releases import CPU_BASE, Release
from harness.releases.source_trees import SourceTree

# Measured sizes on disk: a release without its base, and a wheel.
RELEASE_BYTES = 0.2e9
WHEEL_BYTES = 15e6


def ensure_installed(releases: Sequence[Release], report: ReportMessage) -> None:
    """Install the releases that are missing."""
    if not releases:
        return
    base = releases[0].base
    shared = 0.0 if base.is_current() else BASE_BYTES[base.device]
    missing = [one for one in releases if shared or not one.is_current()]
    if missing:
        torch = ", with torch" if shared and base == CPU_BASE else ""
        size = shared + RELEASE_BYTES * len(missing)
        what = f"installing {_describe_releases(missing)}"
        report(f"{what} ({format_size(size)}{torch})")
        with report_written_bytes(paths.releases_folder(), what, size, report):
            for release in missing:
                installer.install_release(release, report)
    for release in releases:
        installer.install_release(release, report)


def ensure_sources(releases: Sequence[Release], report: ReportMessage) -> list[SourceTree]:
    """Return the sources of these releases; fetch those that are missing."""
    missing = [one for one in releases if not one.has_sources]
    if missing:
        size = WHEEL_BYTES * len(missing)
        what = f"fetching the sources of {_describe_releases(missing)}"
        report(f"{what} ({format_size(size)})")
        with report_written_bytes(paths.releases_folder(), what, size, report):
            for release in missing:
                installer.fetch_release_sources(release, report)
    return [release.open_sources() for release in releases]


def open_repair_sources(trees: Sequence[SourceTree], report: ReportMessage) -> list[SourceTree]:
    """Open the releases with a lock of ours from which stale toggles of these trees are mended.

    They are the nearest before and behind each tree, which are fetched, and all others that are
    here.
    """
    supported = managed_releases.list_releases()
    nearest = {one.name: one for tree in trees for one in _find_neighbours(tree, supported)}
    try:
        ensure_sources(list(nearest.values()), report)
    except NotReadyError as error:
        report(
            f"stale toggles are mended without {_describe_releases([*nearest.values()])}: {error}"
        )
    return [release.open_sources() for release in supported if release.has_sources]


def _find_neighbours(tree: SourceTree, supported: Sequence[Release]) -> list[Release]:
    """Find the last release up to a tree's version and the first behind it."""
    version = tree.version  # a checkout without one counts as newer than every release
    older = [one for one in supported if version is None or Version(one.name) <= version]
    return [*older[-1:], *supported[len(older) : len(older) + 1]]


def ensure_tree(name_or_path: str | None, report: ReportMessage) -> SourceTree:
    """Return the sources that a `--release` word names, by default the newest release's."""
    if name_or_path is None and source_trees.find_installed_tree() is None:
        return ensure_sources(
            [managed_releases.find_default_release() or managed_releases.get_newest_release()],
            report,
        )[0]
    release = managed_releases.find_named_release(name_or_path)
    if name_or_path is not None and "@" in name_or_path and not Path(name_or_path).exists():
        from harness.releases import added_releases

        release = added_releases.find_release(name_or_path, "cpu", report)  # a commit
    return (
        managed_releases.open_release_tree(name_or_path)
        if release is None
        else ensure_sources([release], report)[0]
    )


def _describe_releases(releases: Sequence[Release]) -> str:
    if len(releases) > 3:
        return f"{len(releases)} releases"
    return f"SGLang {', '.join(release.name for release in releases)}"
