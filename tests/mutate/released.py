"""What is made of a release's sources, once for all tests that look at it."""

from __future__ import annotations

from functools import cache

from harness.mutate.making import make
from harness.mutate.targets import named
from harness.registry import catalogue
from harness.registry.catalogue import Catalogue
from harness.registry.schema import Target
from harness.releases import managed
from harness.releases.sources import SourceTree
from harness.store.mutate.faults import Made

NEWEST, OLDER = "0.5.23", "0.5.18"


@cache
def registry() -> Catalogue:
    return catalogue.load()


@cache
def sources(release: str) -> SourceTree:
    return managed.get(release).sources()


@cache
def targets(release: str) -> list[Target]:
    """All functions that faults are made of."""
    return named([], sources(release), registry())


@cache
def made_of(release: str) -> Made:
    return make(targets(release), sources(release))
