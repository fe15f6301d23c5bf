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

from harness.core.errors import UnfixError
from harness.fixes.matching.toggle_status import ToggleState, ToggleStatus, find_toggle_status
from harness.fixes.registry import toggle_catalogue
from harness.fixes.registry.schema import Toggle
from harness.fixes.registry.toggle_catalogue import ToggleCatalogue
from harness.patching import bootstrap
from harness.patching.live_engine import engine
from harness.patching.patch_plan import Direction, ToggleChoice
from harness.toggles import ToggleContext

GUARDS_MARKER = "guards"
ONE_SIDED_REASON = (
    "a guard is a function or a method of a plain class, which pytest can parametrise: "
    "this one cannot be run on both sides"
)


class Side(Enum):
    FIXED = "fixed"
    BUGGY = "buggy"
    AS_IS = "as is"  # whichever of the two the release is


BOTH_SIDES = (Side.FIXED, Side.BUGGY)


@dataclass(frozen=True)
class GuardMarks:
    """What a guard says of itself."""

    guarded: tuple[Toggle, ...]
    always_reverted: tuple[Toggle, ...]


@dataclass(frozen=True)
class GuardCell:
    finding: ToggleStatus
    side: Side

    @property
    def toggle(self) -> Toggle:
        return self.finding.toggle

    def __str__(self) -> str:
        return f"{self.toggle.id} {self.side.value}"


CELL_KEY = pytest.StashKey[GuardCell]()


@functools.cache
def load_registry() -> ToggleCatalogue:
    """The project's toggles, and those of the folders that the environment names."""
    return toggle_catalogue.load_catalogue(
        [Path(folder) for folder in bootstrap.read_toggle_folders()]
    )


def read_guard_marks(node: Any) -> GuardMarks | None:
    """What a test's markers say, its class's and its module's too; None if it guards nothing."""
    guards: dict[str, Toggle] = {}
    without: dict[str, Toggle] = {}
    found = False
    for marker in node.iter_markers(GUARDS_MARKER):
        found = True
        unexpected = set(marker.kwargs) - {"without"}
        if not marker.args or unexpected:
            problem = f"it takes no {', '.join(unexpected)}" if unexpected else "it names no toggle"
            raise UnfixError(f"@pytest.mark.{GUARDS_MARKER}: {problem}")
        given = marker.kwargs.get("without", ())
        beside = given if isinstance(given, tuple | list | set | frozenset) else (given,)
        for names, toggles in ((marker.args, guards), (beside, without)):
            for name in names:
                if not isinstance(name, str):
                    raise UnfixError(
                        f"@pytest.mark.{GUARDS_MARKER}: {name!r} is no toggle's id in quotes"
                    )
                toggles.update((toggle.id, toggle) for toggle in load_registry().select(name))
    return GuardMarks(tuple(guards.values()), tuple(without.values())) if found else None


def find_toggle_state(toggle: Toggle) -> ToggleStatus:
    """A toggle on the release that this process runs."""
    return find_toggle_status(toggle, engine.sources)


def make_cells(marks: GuardMarks, sides: tuple[Side, ...] = BOTH_SIDES) -> list[GuardCell]:
    return [
        GuardCell(find_toggle_state(toggle), side) for toggle in marks.guarded for side in sides
    ]


@contextlib.contextmanager
def revert_where_present(toggles: tuple[Toggle, ...]) -> Iterator[None]:
    """With these always-on checks out, wherever this release has them."""
    there = [toggle for toggle in toggles if find_toggle_state(toggle).state is ToggleState.FIXED]
    if not there:
        yield
        return
    with ToggleContext(tuple(ToggleChoice(toggle, Direction.REVERT) for toggle in there)):
        yield


def choose_direction(cell: GuardCell) -> Direction:
    """What is done to the release to get to this side of the toggle."""
    there = Side.FIXED if cell.finding.state is ToggleState.FIXED else Side.BUGGY
    if cell.side in (there, Side.AS_IS):
        return Direction.OBSERVE
    return Direction.REVERT if cell.side is Side.BUGGY else Direction.ENABLE


def make_choice(cell: GuardCell) -> ToggleChoice:
    return ToggleChoice(cell.toggle, choose_direction(cell))


def apply_cell(cell: GuardCell) -> ToggleContext:
    """The release on one side of a toggle; untouched where it is there already, and counted."""
    if cell.finding.state is ToggleState.STALE:
        raise UnfixError(f"{cell.toggle.id} is stale here: {cell.finding.problem}")
    return ToggleContext((make_choice(cell),))
