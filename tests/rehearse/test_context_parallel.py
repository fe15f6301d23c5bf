"""One rank of context parallelism: it computes its share of a prompt's tokens, and all caches.

Of a rank's own rows the indexer's kernels say how many they are: attention and its products are
CUDA operators, whose shapes no rehearsal records, and experts get the rows of all ranks.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from rehearsed_models import IS_READY, REASON, rehearse_model

from harness.runs.rehearse.deployment import read_model

MODEL = "deepseek-v3.2-exp"
RANKS, CHUNK = 8, 8192
ARGUMENTS = ["--tp", str(RANKS), "--enable-prefill-cp", "--cp-strategy", "interleave"]

pytestmark = [
    pytest.mark.skipif(not IS_READY, reason=REASON),
    pytest.mark.skipif("UNFIX_NIGHTLY" not in os.environ, reason="a nightly test"),
]


def list_shapes(deployment: dict[str, Any], kernel: str, parameter: str) -> set[str]:
    """Return the shapes of a kernel's parameter in the chunk's launches."""
    return {
        launch["arguments"][parameter].partition("[")[2].rstrip("]")
        for launch in deployment["launches"]
        if launch["phase"] == "chunk" and launch["kernel"].endswith(f":{kernel}")
    }


def test_a_chunk_of_sparse_attention_is_split_between_the_ranks(home: Path) -> None:
    deployment = rehearse_model(home, MODEL, 4, ["--no-thresholds"], ARGUMENTS)
    assert deployment["settings"]["chunk"] == CHUNK
    config = read_model(MODEL).config
    heads, width = config["index_n_heads"], config["index_head_dim"]
    queries = CHUNK // RANKS * heads  # no head of the indexer is on another rank
    assert list_shapes(deployment, "_act_quant_kernel", "X_ptr") == {f"{queries}, {width}"}
    assert list_shapes(deployment, "_get_k_and_s_triton_kernel", "k_out_ptr") == {
        f"{CHUNK}, {width}"
    }
    assert list_shapes(deployment, "_vocab_parallel_embedding_kernel", "input_ptr") == {str(CHUNK)}
    operators = {operator["name"] for operator in deployment["operators"]}
    assert {"deep_gemm.fp8_mqa_logits", "flash_mla.flash_mla_sparse_fwd"} <= operators
