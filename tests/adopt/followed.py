"""The registry, and the sources of all releases."""

from __future__ import annotations

from functools import cache

from harness.fixes.registry import toggle_catalogue
from harness.releases import managed_releases
from harness.releases.source_trees import SourceTree

TOGGLES = {toggle.id: toggle for toggle in toggle_catalogue.load_catalogue()}


@cache
def load_trees() -> list[SourceTree]:
    return [release.open_sources() for release in managed_releases.list_releases()]
