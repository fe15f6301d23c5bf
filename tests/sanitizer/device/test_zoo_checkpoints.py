"""What an architecture's file changes in the checkpoint that transformers saves."""

from __future__ import annotations

import pytest
import torch
from packaging.version import Version

from harness.runs.zoo.architecture import CheckpointEdit
from harness.runs.zoo.reference_model import (
    edit_tensors,
    merge_keys,
    move_rope_keys,
    select_edits,
)


def test_keys_are_merged_in_depth_and_null_removes_one() -> None:
    saved = {"text": {"heads": 4, "dtype": "float32"}, "act": "silu", "layers": 2}
    extra = {"text": {"dtype": None, "scoring": "sigmoid"}, "act": "swiglu"}
    assert merge_keys(saved, extra) == {
        "text": {"heads": 4, "scoring": "sigmoid"},
        "act": "swiglu",
        "layers": 2,
    }
    assert saved["text"] == {"heads": 4, "dtype": "float32"}


def test_tensors_have_the_names_and_layouts_of_published_ones() -> None:
    tensors = {"a.experts.down": torch.arange(6.0).view(1, 2, 3), "a.norm": torch.ones(2)}
    edits = [CheckpointEdit("experts", transpose=True), CheckpointEdit(r"^a\.", rename="b.")]
    edited = edit_tensors(tensors, edits)
    assert set(edited) == {"b.experts.down", "b.norm"}
    assert edited["b.experts.down"].tolist() == [[[0, 3], [1, 4], [2, 5]]]


def test_an_edit_that_changes_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="no tensor has a name with expert"):
        edit_tensors({"a.norm": torch.ones(2)}, [CheckpointEdit("expert", transpose=True)])
    both = {"a.one": torch.ones(2), "a.two": torch.ones(2)}
    with pytest.raises(ValueError, match="two tensors have one name"):
        edit_tensors(both, [CheckpointEdit("one|two", rename="three")])


def test_an_edit_belongs_to_its_versions_of_transformers() -> None:
    edits = [CheckpointEdit("a", transformers=">=5"), CheckpointEdit("b")]
    selected = {
        text: [edit.tensors for edit in select_edits(edits, Version(text))]
        for text in ("4.57.1", "5.0.0", "5.13.1")
    }
    assert selected == {"4.57.1": ["b"], "5.0.0": ["a", "b"], "5.13.1": ["a", "b"]}


def test_transformers_4_finds_the_rotation_under_its_own_keys() -> None:
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 6, 6]}
    moved = move_rope_keys({"text_config": {"rope_parameters": rope, "layers": 2}})
    assert moved == {
        "text_config": {
            "layers": 2,
            "rope_theta": 1e6,
            "rope_scaling": {"rope_type": "default", "mrope_section": [4, 6, 6]},
        }
    }
    assert rope["rope_theta"] == 1e6  # the caller's is as it was
    by_layer = {"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}
    assert move_rope_keys(by_layer) == by_layer
