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

from harness.core.errors import PatchError, UnknownToggleError
from harness.fixes.patch_plan import Direction, SourceChange, ToggleChoice
from harness.fixes.registry import toggle_catalogue
from harness.fixes.registry.toggle_catalogue import ToggleCatalogue
from harness.patching import bootstrap
from harness.patching.live_engine import engine


class ToggleContext:
    """Toggles that are active while the block or the decorated function runs."""

    def __init__(self, choices: tuple[SourceChange, ...]) -> None:
        self.choices = choices
        self._entry_counts: list[tuple[int, int]] = []
        self._last_reach = 0

    def __enter__(self) -> ToggleContext:
        engine.enter(self.choices)
        self._entry_counts.append((os.getpid(), engine.reach(self.choices)))
        return self

    def __exit__(self, *_: object) -> None:
        self._last_reach = self.reach
        self._entry_counts.pop()
        engine.leave(self.choices)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function so that the toggles are active while its body runs."""
        if inspect.isasyncgenfunction(function):
            raise PatchError(
                f"{function.__qualname__} is an async generator: put `with` into its body"
            )

        @functools.wraps(function)
        async def call_coroutine(*arguments: Any, **options: Any) -> Any:
            with self:
                return await function(*arguments, **options)

        @functools.wraps(function)
        def call_generator(*arguments: Any, **options: Any) -> Any:
            with self:
                return (yield from function(*arguments, **options))

        @functools.wraps(function)
        def call_function(*arguments: Any, **options: Any) -> Any:
            with self:
                return function(*arguments, **options)

        if inspect.iscoroutinefunction(function):
            return call_coroutine
        return call_generator if inspect.isgeneratorfunction(function) else call_function

    @property
    def reach(self) -> int:
        """How often the toggled code ran since the block was entered."""
        if not self._entry_counts:
            return self._last_reach
        process, before = self._entry_counts[-1]
        # The counts of a forked child start from zero.
        return engine.reach(self.choices) - (before if process == os.getpid() else 0)


def reverted(*names: str, folders: Iterable[Path] = ()) -> ToggleContext:
    """Revert these fixes."""
    return ToggleContext(_make_choices(Direction.REVERT, names, tuple(folders)))


def enabled(*names: str, folders: Iterable[Path] = ()) -> ToggleContext:
    """Enable these fixes."""
    return ToggleContext(_make_choices(Direction.ENABLE, names, tuple(folders)))


def observed(*names: str, folders: Iterable[Path] = ()) -> ToggleContext:
    """Change nothing, and count the runs of the toggles' code."""
    return ToggleContext(_make_choices(Direction.OBSERVE, names, tuple(folders)))


def _make_choices(
    direction: Direction, names: tuple[str, ...], folders: tuple[Path, ...]
) -> tuple[ToggleChoice, ...]:
    if not names:
        raise UnknownToggleError(f"{direction.value} of no toggle: name at least one")
    places = tuple(dict.fromkeys((*map(Path, bootstrap.read_toggle_folders()), *folders)))
    return tuple(
        ToggleChoice(toggle, direction) for toggle in _load_catalogue(places).select_all(names)
    )


@functools.lru_cache(maxsize=8)
def _load_catalogue(folders: tuple[Path, ...]) -> ToggleCatalogue:
    return toggle_catalogue.load_catalogue(folders)
