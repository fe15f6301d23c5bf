"""What was found of toggles on a release, found again by the texts that it was read from."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import msgspec
import packaging

from harness.matching import states
from harness.matching.states import Finding, State
from harness.registry import schema
from harness.registry.schema import Toggle
from harness.remembered import Remembered, code_of, digest
from harness.syntax import patterns, scopes
from harness.syntax.scopes import Sources

FOUND_BY = code_of(
    *(states, patterns, scopes, schema), versions=(packaging.__version__, patterns.MATCHER)
)
Read = TypeVar("Read", bound=Sources)


class Told(msgspec.Struct, frozen=True):
    state: State
    problem: str


class Known(Generic[Read]):
    """Findings of one way to find; a stale one is looked into anew, since its nearest source may
    lie in any module. Of the others the state and the problem are kept, and not where it stands."""

    def __init__(
        self,
        name: str,
        find: Callable[[Toggle, Read], Finding],
        code: str,
    ) -> None:
        self._find = find
        self._told: Remembered[Told] = Remembered(name, Told, code)

    def find(self, toggles: Iterable[Toggle], sources: Read) -> list[Finding]:
        found = [self._one(toggle, sources) for toggle in toggles]
        self._told.keep()
        return found

    def _one(self, toggle: Toggle, sources: Read) -> Finding:
        modules = dict.fromkeys(t.module for v in toggle.variants for t in v.targets)
        texts = [source.text if (source := sources.read(m)) else "\0" for m in modules]
        versions = f"{sources.version} {sys.version}"
        key = digest(msgspec.msgpack.encode(toggle), versions, *texts)
        told = self._told.get(key)
        if told is not None:
            return Finding(toggle, told.state, problem=told.problem)
        found = self._find(toggle, sources)
        if found.state is not State.STALE:
            self._told.put(key, Told(found.state, found.problem))
        return found
