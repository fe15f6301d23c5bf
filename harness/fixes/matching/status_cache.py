"""A disk cache of toggle statuses, keyed by the source texts that each status was read from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import msgspec

from harness.core.cache import DiskCache
from harness.core.code_digest import compute_digest
from harness.core.source_scopes import ReleaseSources
from harness.fixes.matching.toggle_status import ToggleState, ToggleStatus
from harness.fixes.registry.schema import Toggle
from harness.fixes.registry.toggle_catalogue import FIXES_CODE_DIGEST
from harness.releases import upstream_reverts
from harness.releases.source_trees import SourceTree
from harness.releases.upstream_reverts import UpstreamRevert


class CachedReverts(msgspec.Struct, frozen=True):
    """SGLang's own reverts on a release, and digests of the modules that they were read from."""

    modules: dict[str, str]
    reverts: list[UpstreamRevert]


def find_upstream_reverts(sources: SourceTree) -> list[UpstreamRevert]:
    """Find SGLang's own reverts and whether each applies; cached by the modules that they read."""
    registry = sources.read(upstream_reverts.REGISTRY_MODULE)
    if registry is None:
        return []
    cache = _open_reverts_cache()
    key = compute_digest(str(sources.version), registry.text)
    cached = cache.get(key)
    if cached is not None and cached.modules == _digest_modules(sources, cached.modules):
        return cached.reverts
    reverts = upstream_reverts.read_upstream_reverts(sources)
    modules = upstream_reverts.list_target_modules(sources)
    cache.put(key, CachedReverts(_digest_modules(sources, modules), reverts))
    cache.save()
    return reverts


def _open_reverts_cache() -> DiskCache[CachedReverts]:
    return DiskCache("reverts", CachedReverts, FIXES_CODE_DIGEST)


def _digest_modules(sources: SourceTree, modules: Iterable[str]) -> dict[str, str]:
    found = ((module, sources.read(module)) for module in modules)
    return {module: compute_digest(source.text) if source else "" for module, source in found}


SourcesType = TypeVar("SourcesType", bound=ReleaseSources)


class CachedStatus(msgspec.Struct, frozen=True):
    state: ToggleState
    problem: str


class StatusCache(Generic[SourcesType]):
    """Caches the results of one function that finds a toggle's status.

    A stale status is never cached: its nearest source may lie in any module. Of the others the
    cache holds state and problem, but no edit sites.
    """

    def __init__(
        self, name: str, find_status: Callable[[Toggle, SourcesType], ToggleStatus]
    ) -> None:
        self._find_status = find_status
        self._cache: DiskCache[CachedStatus] = DiskCache(name, CachedStatus, FIXES_CODE_DIGEST)

    def find_statuses(self, toggles: Iterable[Toggle], sources: SourcesType) -> list[ToggleStatus]:
        statuses = [self._find_cached_status(toggle, sources) for toggle in toggles]
        self._cache.save()
        return statuses

    def _find_cached_status(self, toggle: Toggle, sources: SourcesType) -> ToggleStatus:
        modules = dict.fromkeys(t.module for v in toggle.variants for t in v.targets)
        texts = [source.text if (source := sources.read(m)) else "\0" for m in modules]
        key = compute_digest(msgspec.msgpack.encode(toggle), str(sources.version), *texts)
        cached = self._cache.get(key)
        if cached is not None:
            return ToggleStatus(toggle, cached.state, problem=cached.problem)
        status = self._find_status(toggle, sources)
        if status.state is not ToggleState.STALE:
            self._cache.put(key, CachedStatus(status.state, status.problem))
        return status
