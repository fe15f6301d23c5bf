"""Toggles inside one process:

from harness import toggles

with toggles.reverted("27460") as toggled:
    ...
assert toggled.reach
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ContextDecorator
from functools import lru_cache
from pathlib import Path
from types import TracebackType

from harness.patching.live import engine
from harness.patching.plan import Choice, Direction
from harness.registry import catalogue
from harness.registry.catalogue import Catalogue


class Toggled(ContextDecorator):
    """Toggles that are in while the block (or the decorated function) runs."""

    def __init__(self, choices: tuple[Choice, ...]) -> None:
        self.choices = choices
        self._before: list[int] = []
        self._reached = 0

    def __enter__(self) -> Toggled:
        engine.enter(self.choices)
        self._before.append(engine.reach(self.choices))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._reached = engine.reach(self.choices) - self._before.pop()
        engine.leave(self.choices)

    @property
    def reach(self) -> int:
        """How often the toggled code ran since the block was entered."""
        if self._before:
            return engine.reach(self.choices) - self._before[-1]
        return self._reached


def reverted(*names: str, folders: Iterable[Path] = ()) -> Toggled:
    """With these fixes taken out."""
    return Toggled(_choices(Direction.REVERT, names, tuple(folders)))


def enabled(*names: str, folders: Iterable[Path] = ()) -> Toggled:
    """With these fixes put in."""
    return Toggled(_choices(Direction.ENABLE, names, tuple(folders)))


def observed(*names: str, folders: Iterable[Path] = ()) -> Toggled:
    """With nothing changed, and every run of the toggles' code counted."""
    return Toggled(_choices(Direction.OBSERVE, names, tuple(folders)))


def _choices(
    direction: Direction, names: tuple[str, ...], folders: tuple[Path, ...]
) -> tuple[Choice, ...]:
    return tuple(Choice(toggle, direction) for toggle in _catalogue(folders).select_all(names))


@lru_cache(maxsize=8)
def _catalogue(folders: tuple[Path, ...]) -> Catalogue:
    return catalogue.load(folders)
