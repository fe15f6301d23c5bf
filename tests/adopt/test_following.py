"""The place of an edit in another release, and places that must be refused."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from fixture_types import Patch
from followed import TOGGLES, load_trees

from harness.core import paths
from harness.core.errors import UnfixError
from harness.fixes.adopt import edit_porting, guard_template, stale_repair
from harness.fixes.matching.toggle_status import find_toggle_status
from harness.fixes.registry.schema import ToggleEdit
from harness.releases.source_trees import SourceTree


def get_tree(name: str) -> SourceTree:
    return next(one for one in load_trees() if one.name == name)


def test_a_fix_is_not_enabled_where_a_name_that_it_is_made_of_is_unknown() -> None:
    edit = ToggleEdit(
        fixed="output_mask = (s_offset[:, None] < seg_len) & n_mask",
        buggy="output_mask = s_offset[:, None] < seg_len",
        target="sglang.srt.lora.triton_ops.sgemm_lora_b:_sgemm_lora_b_kernel",
    )
    resolved = edit_porting.resolve_edits([edit], get_tree("0.5.10"))
    assert resolved is not None
    assert "it has no n_mask" in str(edit_porting.port_edits(resolved, get_tree("0.5.9")))


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("moe-lora-shrink-programs", "moe.virtual_experts:_moe_lora_shrink_splitk_kernel"),
        ("30378-draft-extend", "attention.dsa_metadata:_fused_dsa_draft_extend_metadata_kernel"),
    ],
)
def test_of_two_of_a_name_it_is_the_one_that_moved(name: str, place: str) -> None:
    """The wrong candidates are a namesake at the old place, and a lookalike."""
    variant = TOGGLES[name].variants[-1]
    resolved = edit_porting.resolve_edits(
        stale_repair.to_targeted_edits(variant), get_tree("0.5.23")
    )
    assert resolved is not None
    found = edit_porting.port_edits(resolved, get_tree("0.5.20"))
    assert not isinstance(found, str)
    assert [str(target) for target in found.list_targets()] == [f"sglang.kernels.ops.{place}"]


@pytest.mark.parametrize("name", ["moe-lora-expand-programs", "19016"])
def test_a_guard_that_is_begun_is_python_and_names_its_toggle(name: str) -> None:
    toggle = TOGGLES[name]
    folder = paths.project_folder() / "suites" / toggle.family
    text = guard_template.render_guard(toggle, load_trees(), folder)
    assert f'@pytest.mark.guards("{name}")' in text
    assert isinstance(ast.parse(text).body[-1], ast.FunctionDef)
    for imported in re.findall(r"^from (fixtures\.\w+) import (\w+)$", text, re.MULTILINE):
        module, function = imported
        file = paths.project_folder() / f"{module.replace('.', '/')}.py"
        assert f"\ndef {function}(" in file.read_text()


def test_no_second_guard_is_begun_for_a_toggle(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(paths, "project_folder", lambda: tmp_path)
    toggle = TOGGLES["moe-lora-expand-programs"]
    resolved = [one for one in load_trees() if find_toggle_status(toggle, one).sites]
    file = guard_template.write_guard(toggle, resolved)
    assert file.is_file()
    with pytest.raises(UnfixError, match="is a guard of moe-lora-expand-programs already"):
        guard_template.write_guard(toggle, resolved)
