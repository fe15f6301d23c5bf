"""What `bench/adopting.py` does to the whole registry, for a few of its toggles."""

from __future__ import annotations

import importlib.util
from functools import cache
from types import ModuleType

from harness import paths
from harness.registry import catalogue
from harness.releases import managed
from harness.releases.sources import SourceTree

TOGGLES = {toggle.id: toggle for toggle in catalogue.load()}


@cache
def trees() -> list[SourceTree]:
    return [release.sources() for release in managed.all_releases()]


@cache
def bench() -> ModuleType:
    path = paths.project() / "bench" / "adopting.py"
    spec = importlib.util.spec_from_file_location("adopting_bench", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
