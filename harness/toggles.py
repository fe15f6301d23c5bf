"""Toggles inside one process:

from harness import toggles

with toggles.reverted("27460") as toggled:
    ...
assert toggled.reach
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from harness.errors import PatchError, UnknownToggle
from harness.patching.live import engine
from harness.patching.plan import Change, Choice, Direction
from harness.registry import catalogue
from harness.registry.catalogue import Catalogue


class Toggled:
    """Toggles that are in while the block (or the decorated function) runs."""

    def __init__(self, choices: tuple[Change, ...]) -> None:
        self.choices = choices
        self._before: list[tuple[int, int]] = []
        self._reached = 0

    def __enter__(self) -> Toggled:
        engine.enter(self.choices)
        self._before.append((os.getpid(), engine.reach(self.choices)))
        return self

    def __exit__(self, *_: object) -> None:
        self._reached = self.reach
        self._before.pop()
        engine.leave(self.choices)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function with the toggles in for as long as its body runs."""
        if inspect.isasyncgenfunction(function):
            raise PatchError(
                f"{function.__qualname__} is an async generator: put `with` into its body"
            )

        @functools.wraps(function)
        async def awaited(*arguments: Any, **options: Any) -> Any:
            with self:
                return await function(*arguments, **options)

        @functools.wraps(function)
        def generated(*arguments: Any, **options: Any) -> Any:
            with self:
                return (yield from function(*arguments, **options))

        @functools.wraps(function)
        def called(*arguments: Any, **options: Any) -> Any:
            with self:
                return function(*arguments, **options)

        if inspect.iscoroutinefunction(function):
            return awaited
        return generated if inspect.isgeneratorfunction(function) else called

    @property
    def reach(self) -> int:
        """How often the toggled code ran since the block was entered."""
        if not self._before:
            return self._reached
        process, before = self._before[-1]
        # A forked child counts for itself, from nothing.
        return engine.reach(self.choices) - (before if process == os.getpid() else 0)


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
    if not names:
        raise UnknownToggle(f"{direction.value} of no toggle: name at least one")
    return tuple(Choice(toggle, direction) for toggle in _catalogue(folders).select_all(names))


@functools.lru_cache(maxsize=8)
def _catalogue(folders: tuple[Path, ...]) -> Catalogue:
    return catalogue.load(folders)
