"""Each stand-in was compared with the operator itself on a card, and agrees with it."""

from __future__ import annotations

import json
from typing import Any

from harness.core import paths
from harness.sanitizer.plugins.for_sglang import operators
from harness.store.record_files import read_record_text

RECORD = paths.project_folder() / "bench" / "recorded" / "stand-ins-h100.json.xz"
BIASED = "sgl_kernel.topk_softmax"  # drawn with a bias then, which the stand-in refuses since


def read_record() -> dict[str, Any]:
    record: dict[str, Any] = json.loads(read_record_text(RECORD))
    return record


def test_every_recorded_stand_in_agrees_or_was_not_run() -> None:
    outcomes = {name: one["outcome"] for name, one in read_record()["stand_ins"].items()}
    assert {name for name, one in outcomes.items() if one not in ("agrees", "not run")} == {BIASED}


def test_each_stand_in_is_recorded() -> None:
    recorded = read_record()["stand_ins"]
    assert [name for name in operators.load_stand_ins() if name not in recorded] == []
