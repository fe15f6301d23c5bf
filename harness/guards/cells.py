"""A cell: one guard, one toggle, one side of it; and what is put in and out to get there."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from harness.errors import UnfixError
from harness.matching.states import Finding, State, find
from harness.patching import boot
from harness.patching.live import engine
from harness.patching.plan import Choice, Direction
from harness.registry import catalogue
from harness.registry.catalogue import Catalogue
from harness.registry.schema import Toggle
from harness.toggles import Toggled

MARKER = "guards"
ONE_SIDED = (
    "a guard is a function or a method of a plain class, which pytest can parametrise: "
    "this one cannot be run on both sides"
)


class Side(Enum):
    FIXED = "fixed"
    BUGGY = "buggy"
    AS_IS = "as is"  # whichever of the two the release is


BOTH = (Side.FIXED, Side.BUGGY)


@dataclass(frozen=True)
class Marked:
    """What a guard says of itself."""

    guards: tuple[Toggle, ...]
    without: tuple[Toggle, ...]


@dataclass(frozen=True)
class Cell:
    finding: Finding
    side: Side

    @property
    def toggle(self) -> Toggle:
        return self.finding.toggle

    def __str__(self) -> str:
        return f"{self.toggle.id} {self.side.value}"


CELL = pytest.StashKey[Cell]()


@functools.cache
def registry() -> Catalogue:
    """The project's toggles, and those of the folders that the environment names."""
    return catalogue.load([Path(folder) for folder in boot.folders()])


def marked(node: Any) -> Marked | None:
    """What a test's markers say, its class's and its module's too; None if it guards nothing."""
    guards: dict[str, Toggle] = {}
    without: dict[str, Toggle] = {}
    found = False
    for marker in node.iter_markers(MARKER):
        found = True
        unexpected = set(marker.kwargs) - {"without"}
        if not marker.args or unexpected:
            problem = f"it takes no {', '.join(unexpected)}" if unexpected else "it names no toggle"
            raise UnfixError(f"@pytest.mark.{MARKER}: {problem}")
        given = marker.kwargs.get("without", ())
        beside = given if isinstance(given, tuple | list | set | frozenset) else (given,)
        for names, toggles in ((marker.args, guards), (beside, without)):
            for name in names:
                if not isinstance(name, str):
                    raise UnfixError(f"@pytest.mark.{MARKER}: {name!r} is no toggle's id in quotes")
                toggles.update((toggle.id, toggle) for toggle in registry().select(name))
    return Marked(tuple(guards.values()), tuple(without.values())) if found else None


def state_of(toggle: Toggle) -> Finding:
    """A toggle on the release that this process runs."""
    return find(toggle, engine.sources)


def cells(marks: Marked, sides: tuple[Side, ...] = BOTH) -> list[Cell]:
    return [Cell(state_of(toggle), side) for toggle in marks.guards for side in sides]


@contextlib.contextmanager
def without(toggles: tuple[Toggle, ...]) -> Iterator[None]:
    """With these always-on checks out, wherever this release has them."""
    there = [toggle for toggle in toggles if state_of(toggle).state is State.FIXED]
    if not there:
        yield
        return
    with Toggled(tuple(Choice(toggle, Direction.REVERT) for toggle in there)):
        yield


def direction(cell: Cell) -> Direction:
    """What is done to the release to get to this side of the toggle."""
    there = Side.FIXED if cell.finding.state is State.FIXED else Side.BUGGY
    if cell.side in (there, Side.AS_IS):
        return Direction.OBSERVE
    return Direction.REVERT if cell.side is Side.BUGGY else Direction.ENABLE


def change(cell: Cell) -> Choice:
    return Choice(cell.toggle, direction(cell))


def applied(cell: Cell) -> Toggled:
    """The release on one side of a toggle; untouched where it is there already, and counted."""
    if cell.finding.state is State.STALE:
        raise UnfixError(f"{cell.toggle.id} is stale here: {cell.finding.problem}")
    return Toggled((change(cell),))
