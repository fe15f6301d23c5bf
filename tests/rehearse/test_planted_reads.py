"""A deployment whose indices are left uncomputed: the kernel that reads them is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from rehearsed_models import IS_READY, REASON, rehearse_model

FOLDER = Path(__file__).parent / "planted_toggles"
# The line that reads what each planted fault leaves uncomputed, by batch. The indices of a prefix
# of 122,872 tokens end in a block of 504 that is not copied, those of 1,970 tokens in one of 434.
READS = {
    "uncomputed-splits": dict.fromkeys(
        ("decode", "long decode"), "kv_splits = tl.load(num_kv_splits + cur_batch)"
    ),
    "uncopied-indices": {
        "prefix": "kv_indices + cur_seq_kv_start_idx + start_n + offs_n_prefix",
        # A long request's indices are read in three parts of eight that there may be.
        **dict.fromkeys(("decode", "long decode"), "kv_indices + cur_batch_kv_start_idx + offs_n"),
    },
}

pytestmark = [
    pytest.mark.skipif(not IS_READY, reason=REASON),
    pytest.mark.skipif("UNFIX_NIGHTLY" not in os.environ, reason="a nightly test"),
]


def list_reads(home: Path, words: list[str]) -> list[tuple[str, str]]:
    """Return the batch and the line of each uninitialized read of a Llama with four layers."""
    deployment = rehearse_model(home, "llama-3.1-8b", 4, [*words, "--no-thresholds"])
    findings = deployment["findings"]
    return [
        (finding["phase"], finding["text"])
        for finding in findings
        if finding["kind"] == "UninitializedMemory"
    ]


@pytest.mark.parametrize("toggle", READS)
def test_what_a_planted_fault_leaves_uncomputed_is_named(home: Path, toggle: str) -> None:
    reads = list_reads(home, ["--toggles", str(FOLDER), "--revert", toggle])
    phases = {phase for phase, _ in reads}
    assert phases == READS[toggle].keys()
    for phase, text in READS[toggle].items():
        assert any(one == phase and line.startswith(text) for one, line in reads)


def test_nothing_is_named_without_a_fault(home: Path) -> None:
    assert list_reads(home, []) == []
