"""One rank of context parallelism: it computes its share of a prompt's tokens, and all caches."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from rehearsed_models import IS_READY, REASON, rehearse

RANKS, CHUNK = 8, 8192
ARGUMENTS = ["--tp", str(RANKS), "--enable-prefill-cp", "--cp-strategy", "interleave"]

pytestmark = [
    pytest.mark.skipif(not IS_READY, reason=REASON),
    pytest.mark.skipif("UNFIX_NIGHTLY" not in os.environ, reason="a nightly test"),
]


def test_a_chunk_of_sparse_attention_is_split_between_the_ranks(tmp_path: Path) -> None:
    deployment = rehearse(tmp_path, "deepseek-v3.2-exp", 4, ["--no-thresholds"], ARGUMENTS)
    assert deployment["settings"]["chunk"] == CHUNK
    rows = {
        int(size)
        for launch in deployment["launches"]
        if launch["phase"] == "chunk"
        for value in launch["arguments"].values()
        for size in re.findall(r"^bfloat16\[(\d+),", value)
    }
    assert CHUNK // RANKS in rows
    operators = {one["name"] for one in deployment["operators"]}
    assert {"deep_gemm.fp8_mqa_logits", "flash_mla.flash_mla_sparse_fwd"} <= operators
