"""Data derived from a release's sources, once for all tests that use it."""

from __future__ import annotations

from functools import cache

from harness.fixes.registry import toggle_catalogue
from harness.fixes.registry.schema import CodeTarget
from harness.fixes.registry.toggle_catalogue import ToggleCatalogue
from harness.releases import managed_releases
from harness.releases.source_trees import SourceTree
from harness.runs.mutate.fault_generation import generate_faults
from harness.runs.mutate.target_selection import select_targets
from harness.store.mutate.faults import GeneratedFaults

NEWEST, OLDER = "0.5.23", "0.5.18"


@cache
def load_registry() -> ToggleCatalogue:
    return toggle_catalogue.load_catalogue()


@cache
def load_sources(release: str) -> SourceTree:
    return managed_releases.get_release(release).open_sources()


@cache
def list_targets(release: str) -> list[CodeTarget]:
    """Return all functions that faults are generated in."""
    return select_targets([], load_sources(release), load_registry())


@cache
def generate_for_release(release: str) -> GeneratedFaults:
    return generate_faults(list_targets(release), load_sources(release))


def generate_for_module(release: str, module: str) -> GeneratedFaults:
    """Return the faults of all functions of a module."""
    return generate_faults(
        select_targets([module], load_sources(release), load_registry()), load_sources(release)
    )
