"""A cell (one guard, one toggle, one side), and the patch that leads to its side."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from harness.core.cpp_tokens import is_cpp_path
from harness.core.errors import UnfixError
from harness.fixes.matching.toggle_status import ToggleState, ToggleStatus, find_toggle_status
from harness.fixes.patch_plan import Direction, ToggleChoice
from harness.fixes.registry import toggle_catalogue
from harness.fixes.registry.schema import Toggle
from harness.fixes.registry.toggle_catalogue import ToggleCatalogue
from harness.patching import bootstrap
from harness.patching.live_engine import engine
from harness.toggles import ToggleContext

GUARDS_MARKER = "guards"
_DEFINED_NAME = re.compile(r"^\s*(?:async )?def (\w+)", re.MULTILINE)


class Side(Enum):
    FIXED = "fixed"
    BUGGY = "buggy"
    AS_IS = "as is"  # the side that the release itself is on


@dataclass(frozen=True)
class GuardMarks:
    """The toggles that a guard's markers name."""

    guarded: tuple[Toggle, ...]
    always_reverted: tuple[Toggle, ...]


@dataclass(frozen=True)
class GuardCell:
    finding: ToggleStatus
    side: Side

    @property
    def toggle(self) -> Toggle:
        return self.finding.toggle


# The state of the toggle that an item guards. A test can read all that belongs to its item, so
# nothing there tells its side: the runner chooses that for each run.
GUARDED_STATUS = pytest.StashKey[ToggleStatus]()


@functools.cache
def load_registry() -> ToggleCatalogue:
    """Load the project's toggles, and the toggles in folders that the environment names."""
    return toggle_catalogue.load_catalogue(
        [Path(folder) for folder in bootstrap.read_toggle_folders()]
    )


def read_guard_marks(node: Any) -> GuardMarks | None:
    """Read the markers of a test, its class and its module; None if it guards nothing."""
    guards: dict[str, Toggle] = {}
    without: dict[str, Toggle] = {}
    markers = list(node.iter_markers(GUARDS_MARKER))
    for marker in markers:
        unexpected = set(marker.kwargs) - {"without"}
        if not marker.args or unexpected:
            problem = f"it takes no {', '.join(unexpected)}" if unexpected else "it names no toggle"
            raise UnfixError(f"@pytest.mark.{GUARDS_MARKER}: {problem}")
        value = marker.kwargs.get("without", ())
        reverted = value if isinstance(value, tuple | list | set | frozenset) else (value,)
        for names, toggles in ((marker.args, guards), (reverted, without)):
            for name in names:
                if not isinstance(name, str):
                    raise UnfixError(
                        f"@pytest.mark.{GUARDS_MARKER}: {name!r} is no toggle's id in quotes"
                    )
                toggles.update((toggle.id, toggle) for toggle in load_registry().select(name))
    return GuardMarks(tuple(guards.values()), tuple(without.values())) if markers else None


def find_toggle_state(toggle: Toggle) -> ToggleStatus:
    """Return the state of a toggle on the release that this process runs."""
    return find_toggle_status(toggle, engine.sources)


@contextlib.contextmanager
def revert_where_present(toggles: tuple[Toggle, ...]) -> Iterator[None]:
    """Revert these always-on checks during a block, if this release has them."""
    choices = tuple(
        ToggleChoice(toggle, Direction.REVERT)
        for toggle in toggles
        if find_toggle_state(toggle).state is ToggleState.FIXED
    )
    with ToggleContext(choices) if choices else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def enable_where_missing(*names: str) -> Iterator[None]:
    """Put these fixes into a release without them in a block: a guard sees its own bug alone."""
    choices = tuple(
        ToggleChoice(toggle, Direction.ENABLE)
        for name in names
        for toggle in load_registry().select(name)
        if find_toggle_state(toggle).state is ToggleState.BUGGY
    )
    with ToggleContext(choices) if choices else contextlib.nullcontext():
        yield


def describe_moment(finding: ToggleStatus) -> str:
    """Describe when a cell's sides change the code: a guard's process has imported it before."""
    is_built = any(is_cpp_path(site.target.module) for site in finding.sites)
    return "as its CUDA module is built" if is_built else "live"


def lacks_definition(cell: GuardCell) -> bool:
    """Return whether the cell's side lacks a function that the fix adds, which cannot run there."""
    is_lacking = cell.finding.state is ToggleState.BUGGY and cell.side is not Side.FIXED
    return is_lacking and any(
        {*_DEFINED_NAME.findall(site.edit.fixed)} - {*_DEFINED_NAME.findall(site.edit.buggy)}
        for site in cell.finding.sites
    )


def choose_direction(cell: GuardCell) -> Direction:
    """Return the direction in which the toggle leads from the release to the cell's side."""
    own_side = Side.FIXED if cell.finding.state is ToggleState.FIXED else Side.BUGGY
    if cell.side in (own_side, Side.AS_IS):
        return Direction.OBSERVE
    return Direction.REVERT if cell.side is Side.BUGGY else Direction.ENABLE


def make_choice(cell: GuardCell) -> ToggleChoice:
    return ToggleChoice(cell.toggle, choose_direction(cell))


def apply_cell(cell: GuardCell) -> ToggleContext:
    """Put the release on the cell's side; if it is there already, only count the reach."""
    if cell.finding.state is ToggleState.STALE:
        raise UnfixError(f"{cell.toggle.id} is stale here: {cell.finding.problem}")
    return ToggleContext((make_choice(cell),))
