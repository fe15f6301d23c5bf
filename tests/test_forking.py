"""Modules that are imported once and forked often."""

from __future__ import annotations

import gc

from harness.core import preloading
from harness.core.child_process import call_in_fork


def test_a_program_in_a_fork_does_not_unfreeze_what_its_parent_imported() -> None:
    def capture_as_sglang_does() -> dict[str, int]:
        gc.freeze()
        imported = gc.get_freeze_count()
        preloading.ignore_freezing()
        circle: list[object] = []
        circle.append(circle)
        gc.collect()
        gc.freeze()
        del circle
        gc.unfreeze()
        frozen = gc.get_freeze_count()  # some end, as all objects do
        return {"frozen": frozen > imported // 2, "freed": gc.collect() > 0}

    assert call_in_fork(capture_as_sglang_does) == {"frozen": True, "freed": True}
