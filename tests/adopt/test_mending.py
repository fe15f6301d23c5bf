"""Mending without a toggle's newest variant: the proposal equals the one that a person wrote."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from followed import TOGGLES, load_trees

from bench.cases import adopting as bench
from harness.core import paths
from harness.fixes.adopt import stale_repair
from harness.fixes.registry import toggle_reader

NEEDS = {
    "26972": "the same statement with another sum",
    "25418-large-query": "a renamed attribute",
    "23268-fused-qk-split": "another operand",
    "33665": "another module",
}


@pytest.mark.parametrize("name", NEEDS)
def test_what_is_proposed_for_the_newest_releases_is_what_a_person_wrote(name: str) -> None:
    assert bench.held_back(TOGGLES[name], load_trees()) == "equal"


def test_nothing_is_proposed_where_the_fix_became_a_statement_of_its_own() -> None:
    assert bench.held_back(TOGGLES["27360"], load_trees()) == "none"


def test_a_file_gets_its_variant_back_and_keeps_all_else(tmp_path: Path) -> None:
    whole = TOGGLES["26972"]
    path = paths.toggles_folder() / "26972.yaml"
    text = path.read_text()
    lines, starts = text.split("\n"), toggle_reader.find_variant_lines(path)
    whole_without_newest = bench.without_newest(whole)
    draft = tmp_path / path.name
    cut = "\n".join(lines[: starts[-1] - 1]) + "\n"
    draft.write_text(
        cut.replace(whole.variants[-2].releases, whole_without_newest.variants[-1].releases)
    )
    assert toggle_reader.read_toggle(draft) == whole_without_newest
    found = stale_repair.repair_toggle(whole_without_newest, load_trees())
    assert found is not None
    assert found.repaired_toggle is not None
    starts = toggle_reader.find_variant_lines(draft)
    text = draft.read_text()
    after = stale_repair.render_repaired_file(
        text, whole_without_newest, found.repaired_toggle, starts
    )
    draft.write_text(after)
    mended = toggle_reader.read_toggle(draft)
    assert [v.releases for v in mended.variants] == [v.releases for v in whole.variants]
    assert after.startswith(cut)
    without_variants = msgspec.structs.replace(mended, variants=())
    assert without_variants == msgspec.structs.replace(whole, variants=())
    assert stale_repair.repair_toggle(mended, load_trees()) is None
