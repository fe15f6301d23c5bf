"""SGLang's CUDA C++ in a rehearsal runs under check at full size; what does not is listed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from rehearsed_models import (
    IS_READY,
    MISPLACED_SIBLINGS,
    PLANTED_TOGGLES,
    REASON,
    RELEASE,
    ModelToRehearse,
    rehearse_layers,
)

from harness.core import paths
from harness.releases import cuda_toolkit
from harness.store.rehearse.values import UncheckedCause

TREE_KERNEL = "build_tree_efficient"
DRAFTS = ["--speculative-algorithm", "EAGLE3", "--context-length", "2048"]
DRAFTS += ["--speculative-draft-model-path", "llama-3.1-8b-eagle3", "--speculative-num-steps", "3"]
TREE = [*DRAFTS, "--speculative-eagle-topk", "4", "--speculative-num-draft-tokens", "16"]
CHAIN = [*DRAFTS, "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"]

pytestmark = pytest.mark.skipif(not IS_READY, reason=REASON)
needs_toolkit = pytest.mark.skipif(
    cuda_toolkit.find_toolkit() is None, reason="needs the CUDA toolkit"
)
of_the_night = pytest.mark.skipif("UNFIX_NIGHTLY" not in os.environ, reason="a nightly test")


def list_cuda_launches(deployment: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the launches of CUDA kernels by batch and kernel."""
    return {
        (launch["phase"], launch["kernel"].rpartition(":")[2]): launch
        for launch in deployment["launches"]
        if ".cuh:" in launch["kernel"]
    }


@needs_toolkit
@pytest.mark.parametrize("deployments", [[ModelToRehearse("llama-3.1-8b", 4)]], indirect=True)
def test_launches_of_cuda_kernels_run_under_check_at_full_size(
    deployments: list[dict[str, Any]],
) -> None:
    [deployment] = deployments
    launches = list_cuda_launches(deployment)
    chunk = deployment["settings"]["chunk"]
    gate = launches["chunk", "act_and_mul_kernel"]
    assert (gate["count"], gate["programs"], gate["refusal"]) == (4, 6, "")  # of two ends and drawn
    assert gate["arguments"]["input"] == f"bfloat16[{chunk}, 28672]"
    # An element's place in a row of gates is a 32-bit integer: half of the largest product.
    assert chunk * 28672 // 64 <= gate["extent"] < chunk * 28672
    for phase in ("chunk", "prefix", "decode", "long decode"):
        for kernel in ("fused_rope_kernel", "store_kvcache_kernel"):
            assert launches[phase, kernel]["programs"] > 0
    unchecked = {operator["name"] for operator in deployment["operators"]}
    assert all(one.startswith("sgl_kernel.") for one in unchecked)
    assert {operator["cause"] for operator in deployment["operators"]} == {UncheckedCause.NO_SOURCE}
    assert unchecked | {"jit:kvcache.store_cache"} <= deployment["calls"].keys()


def test_without_the_toolkit_each_launch_is_listed_as_not_checked(
    home: Path, tmp_path: Path
) -> None:
    releases = tmp_path / ".releases"
    releases.mkdir()
    (tmp_path / ".unfix").symlink_to(home / ".unfix")  # Triton's kernels are compiled once
    for name in ("base", RELEASE):
        (releases / name).symlink_to(paths.releases_folder() / name)
    deployment = rehearse_layers(tmp_path, "llama-3.1-8b", 1, ["--no-thresholds"], [])
    assert list_cuda_launches(deployment) == {}
    modules = [
        operator for operator in deployment["operators"] if operator["name"].startswith("jit:")
    ]
    assert {module["name"] for module in modules} >= {
        "jit:kvcache.store_cache",
        "jit:activation.run_activation",
    }
    assert {module["cause"] for module in modules} == {UncheckedCause.NO_TOOLKIT}


def make_drafting_model(arguments: list[str]) -> list[ModelToRehearse]:
    return [ModelToRehearse("llama-3.1-8b", 3, tuple(arguments), toggles=MISPLACED_SIBLINGS)]


@needs_toolkit
@pytest.mark.parametrize(
    ("deployments", "is_found"),
    [
        (make_drafting_model(TREE), True),
        pytest.param(make_drafting_model(CHAIN), False, marks=of_the_night),
    ],
    indirect=["deployments"],
)
def test_a_fault_that_only_a_tree_of_drafts_shows_is_named(
    deployments: list[dict[str, Any]], is_found: bool
) -> None:
    [deployment] = deployments
    assert [phase["failure"] for phase in deployment["phases"]] == [""] * len(deployment["phases"])
    [built] = [one for key, one in list_cuda_launches(deployment).items() if key[1] == TREE_KERNEL]
    assert not built["refusal"]
    assert built["programs"] > 0
    found = [
        finding
        for finding in deployment["findings"]
        if finding["kernel"].endswith(f":{TREE_KERNEL}")
    ]
    assert bool(found) == is_found
    if is_found:
        assert found[0]["kind"] == "OutOfBounds"
        assert "past the end of retrive_next_sibling" in found[0]["headline"]
        assert found[0]["text"].startswith("retrive_next_sibling[(bid + 1) * draft_token_num + i]")


@needs_toolkit
def test_a_toggle_whose_module_does_not_compile_ends_the_batch(home: Path) -> None:
    words = [
        "--no-thresholds",
        "--toggles",
        str(PLANTED_TOGGLES),
        "--revert",
        "undeclared-position",
    ]
    deployment = rehearse_layers(home, "llama-3.1-8b", 1, words, CHAIN)
    failures = {phase["name"]: phase["failure"] for phase in deployment["phases"]}
    assert failures["speculation"].startswith("PatchError: jit:speculative_tree.build_tree_kernel")
    assert 'error: identifier "undeclared" is undefined' in failures["speculation"]
    assert all(
        operator["cause"] == UncheckedCause.NO_SOURCE for operator in deployment["operators"]
    )
