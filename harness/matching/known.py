"""The states of toggles on a release, for who wants no more than the word."""

from __future__ import annotations

from collections.abc import Sequence

import ast_grep_py
import msgspec

from harness.matching import states as finding
from harness.matching.states import State, find
from harness.registry.schema import Toggle
from harness.remembered import Remembered, digest
from harness.syntax import patterns, scopes
from harness.syntax.scopes import Sources

FOUND_BY = (finding, patterns, scopes, ast_grep_py)


def known_states(toggles: Sequence[Toggle], sources: Sources) -> dict[str, State]:
    """The state of each toggle, by its id: from the texts of its targets, read before or now."""
    remembered: Remembered[State] = Remembered("states", State, FOUND_BY)
    found = {}
    for toggle in toggles:
        modules = dict.fromkeys(t.module for v in toggle.variants for t in v.targets)
        texts = [source.text if (source := sources.read(m)) else "\0" for m in modules]
        key = digest(msgspec.msgpack.encode(toggle), str(sources.version), *texts)
        found[toggle.id] = remembered.get(key) or remembered.put(key, find(toggle, sources).state)
    remembered.keep()
    return found
