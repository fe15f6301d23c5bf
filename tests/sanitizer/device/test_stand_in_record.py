"""The page of the virtual GPU has the record of its stand-ins beside the operators of a card."""

from __future__ import annotations

import json
from typing import Any

from fixtures.stand_ins.recorded import describe_record
from harness.core import paths
from harness.sanitizer.plugins.for_sglang import operators
from harness.store.record_files import read_record_text

PAGE = paths.project_folder() / "docs" / "explanation" / "virtual-device.md"
RECORD = paths.project_folder() / "bench" / "recorded" / "stand-ins-h100.json.xz"
BIASED = "sgl_kernel.topk_softmax"  # drawn with a bias then, which the stand-in refuses since
LATER = "Not compared on a card yet:"


def read_record() -> dict[str, Any]:
    record: dict[str, Any] = json.loads(read_record_text(RECORD))
    return record


def test_the_page_has_each_row_of_the_record() -> None:
    page = PAGE.read_text()
    assert [line for line in describe_record(read_record()) if line not in page] == []


def test_every_recorded_stand_in_agrees_or_was_not_run() -> None:
    outcomes = {name: one["outcome"] for name, one in read_record()["stand_ins"].items()}
    assert {name for name, one in outcomes.items() if one not in ("agrees", "not run")} == {BIASED}


def test_each_stand_in_is_recorded_or_named_as_not_compared_yet() -> None:
    recorded = read_record()["stand_ins"]
    later = PAGE.read_text().partition(LATER)[2].partition("\n\n")[0]
    names = operators.load_stand_ins()
    assert [name for name in names if name not in recorded and f"`{name}`" not in later] == []
