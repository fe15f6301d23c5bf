"""What was found of toggles on a release, found again by the texts that it was read from."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import msgspec
import packaging

from harness.core import source_scopes
from harness.core.cache import DiskCache, compute_code_digest
from harness.core.code_digest import compute_digest
from harness.core.source_scopes import ReleaseSources
from harness.fixes import patterns
from harness.fixes.matching import toggle_status
from harness.fixes.matching.toggle_status import ToggleState, ToggleStatus
from harness.fixes.registry import schema
from harness.fixes.registry.schema import Toggle

MATCHING_CODE_DIGEST = compute_code_digest(
    *(toggle_status, patterns, source_scopes, schema),
    versions=(packaging.__version__, patterns.AST_GREP_STAMP),
)
SourcesType = TypeVar("SourcesType", bound=ReleaseSources)


class CachedStatus(msgspec.Struct, frozen=True):
    state: ToggleState
    problem: str


class StatusCache(Generic[SourcesType]):
    """Findings of one way to find; a stale one is looked into anew, since its nearest source may
    lie in any module. Of the others the state and the problem are kept, and not where it stands."""

    def __init__(
        self,
        name: str,
        find_status: Callable[[Toggle, SourcesType], ToggleStatus],
        code_digest: str,
    ) -> None:
        self._find_status = find_status
        self._cache: DiskCache[CachedStatus] = DiskCache(name, CachedStatus, code_digest)

    def find_statuses(self, toggles: Iterable[Toggle], sources: SourcesType) -> list[ToggleStatus]:
        found = [self._find_or_recall(toggle, sources) for toggle in toggles]
        self._cache.save()
        return found

    def _find_or_recall(self, toggle: Toggle, sources: SourcesType) -> ToggleStatus:
        modules = dict.fromkeys(t.module for v in toggle.variants for t in v.targets)
        texts = [source.text if (source := sources.read(m)) else "\0" for m in modules]
        versions = f"{sources.version} {sys.version}"
        key = compute_digest(msgspec.msgpack.encode(toggle), versions, *texts)
        told = self._cache.get(key)
        if told is not None:
            return ToggleStatus(toggle, told.state, problem=told.problem)
        found = self._find_status(toggle, sources)
        if found.state is not ToggleState.STALE:
            self._cache.put(key, CachedStatus(found.state, found.problem))
        return found
