"""Each stand-in was compared with the operator itself on a card, and agrees with it."""

from __future__ import annotations

import json
from typing import Any

from harness.core import paths
from harness.sanitizer.plugins.for_sglang import operators
from harness.store.record_files import read_record_text

RECORDS = paths.project_folder() / "bench" / "recorded"
ADDRESS = "sgl_kernel.kvcacheio.get_device_accessible_ptr"  # its result is one
BIASED = "sgl_kernel.topk_softmax"  # drawn with a bias then, which the stand-in refuses since


def read_stand_ins() -> dict[str, Any]:
    files = sorted(RECORDS.glob("stand-ins-h*.json.xz"))
    records = [json.loads(read_record_text(file))["stand_ins"] for file in files]
    return {name: one for record in records for name, one in record.items()}


def test_every_recorded_stand_in_agrees_or_was_not_run() -> None:
    outcomes = {name: one["outcome"] for name, one in read_stand_ins().items()}
    wrong = {name for name, one in outcomes.items() if one not in ("agrees", "not run")}
    assert wrong == {ADDRESS, BIASED}


def test_each_stand_in_is_recorded() -> None:
    recorded = read_stand_ins()
    assert [name for name in operators.load_stand_ins() if name not in recorded] == []
