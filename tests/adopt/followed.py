"""The registry, and the sources of all releases."""

from __future__ import annotations

from functools import cache

from harness.registry import catalogue
from harness.releases import managed
from harness.releases.sources import SourceTree

TOGGLES = {toggle.id: toggle for toggle in catalogue.load()}


@cache
def trees() -> list[SourceTree]:
    return [release.sources() for release in managed.all_releases()]
