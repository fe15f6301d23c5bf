"""Prefill in CUDA graphs: SGLang's segments between attention are captured and replayed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from rehearsed_models import IS_READY, REASON, ModelToRehearse, rehearse_layers

TOKENS = 8192
TOKEN_BYTES = 2 * 4096  # of a token's hidden state in Llama-3.1-8B

pytestmark = pytest.mark.skipif(not IS_READY, reason=REASON)


def list_batches(deployment: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the batches by their names, with the kernels that they launched."""
    phases = {phase["name"]: {**phase, "kernels": {}} for phase in deployment["phases"]}
    for launch in deployment["launches"]:
        kernels = phases[launch["phase"]]["kernels"]
        name = launch["kernel"].rpartition(":")[2]
        kernels[name] = kernels.get(name, 0) + launch["count"]
    assert not any(phase["failure"] for phase in phases.values())
    return phases


def make_models(*layers: int) -> list[ModelToRehearse]:
    pool = ("--max-total-tokens", "600000")  # as large for two layers as for all
    arguments = ("--cuda-graph-max-bs-prefill", str(TOKENS), *pool)
    return [ModelToRehearse("llama-3.1-8b", count, arguments) for count in layers]


@pytest.mark.parametrize("deployments", [make_models(2)], indirect=True)
def test_the_largest_and_the_smallest_graph_are_replayed_and_attention_runs_between(
    deployments: list[dict[str, Any]],
) -> None:
    phases = list_batches(deployments[0])
    assert phases["prefill graph capture"]["described"] == "prefill of 4 and 8,192 tokens, captured"
    described = {name: phases[name]["described"] for name in phases if "graph" in name}
    assert "in the graph of 8,192, the largest of" in described["prefill graph"]
    assert "a chunk of 4 tokens behind 131,060" in described["prefill small graph"]
    for name in ("chunk", "prefill graph", "prefill small graph"):
        assert phases[name]["kernels"]["_fwd_kernel"] == 2  # a layer's attention each
        assert phases[name]["layers"] == 0  # the model's code does not run


@pytest.mark.skipif("UNFIX_NIGHTLY" not in os.environ, reason="a nightly test")
@pytest.mark.parametrize("deployments", [make_models(2, 32)], indirect=True)
def test_thirty_two_layers_share_the_memory_of_their_graphs(
    deployments: list[dict[str, Any]],
) -> None:
    assert list_batches(deployments[1])["prefill graph"]["kernels"]["_fwd_kernel"] == 32
    few, whole = (deployment["memory"]["buffers"] for deployment in deployments)
    # Memory of each layer's own would be eight hidden states at the least: 30 layers of 0.5 GB.
    assert abs(whole - few) < TOKENS * TOKEN_BYTES


@pytest.mark.skipif("UNFIX_NIGHTLY" not in os.environ, reason="a nightly test")
def test_ranks_that_reduce_on_side_streams_have_both_kinds_of_graphs(home: Path) -> None:
    sizes = ["--cuda-graph-max-bs-prefill", "512", "--cuda-graph-max-bs-decode", "8"]
    deployment = rehearse_layers(home, "deepseek-v3", 4, ["--no-thresholds"], ["--tp", "8", *sizes])
    failures = {phase["name"]: phase["failure"] for phase in deployment["phases"]}
    assert {name for name in failures if name.endswith("graph")} == {
        *("graph", "small graph", "prefill graph", "prefill small graph"),
    }
    assert not any(failures.values())
