"""A rehearsal in which layers pass their input on says what one says that runs them all."""

from __future__ import annotations

import os
from typing import Any

import pytest
from rehearsed_models import IS_READY, REASON, ModelToRehearse

KEPT_BYTES = 1 << 16  # that a peak may be lower by; seen: 5,120 of Qwen3-235B with --ep 8
LAYERS_OF_KINDS = 16  # so that each kind has more than a first and a last one

pytestmark = pytest.mark.skipif(not IS_READY, reason=REASON)


def count_passed(deployment: dict[str, Any]) -> int:
    return sum(phase.get("passed_layers", 0) for phase in deployment["phases"])


def describe_deployment(deployment: dict[str, Any]) -> dict[str, Any]:
    """Return what a rehearsal says, but for its time, all memory, and which layers ran."""
    ignored = ("seconds", "layers", "passed_layers", "peak")
    return {
        name: [{key: one[key] for key in one if key not in ignored} for one in value]
        if name == "phases"
        else value
        for name, value in deployment.items()
        if name not in ("seconds", "processor_seconds", "resident", "functions")
    }


def rehearse_both_ways(model: str, layers: int, arguments: str) -> list[ModelToRehearse]:
    """Return a model whose layers pass their input on, and the same one that runs them all."""
    return [
        ModelToRehearse(model, layers, tuple(arguments.split()), all_layers=all_layers)
        for all_layers in (False, True)
    ]


# The first layer of DeepSeek-V2-Lite is dense, the others have experts.
MODELS = [rehearse_both_ways("deepseek-v2-lite", 7, "--max-total-tokens 400000")]
MODELS_OF_THE_NIGHT = [
    rehearse_both_ways(model, LAYERS_OF_KINDS, arguments)
    for model, arguments in (
        ("gpt-oss-120b", "--tp 4"),
        ("qwen3-next-80b-a3b", "--tp 4"),
        ("qwen3-235b-a22b", "--tp 8 --ep 8"),
        ("deepseek-v3", "--tp 8 --dp 4 --enable-dp-attention"),
    )
]
of_the_night = pytest.mark.skipif("UNFIX_NIGHTLY" not in os.environ, reason="a nightly test")


@pytest.mark.parametrize(
    "deployments",
    [*MODELS, *(pytest.param(models, marks=of_the_night) for models in MODELS_OF_THE_NIGHT)],
    indirect=True,
    ids=lambda models: models[0].name,
)
def test_all_layers_launch_what_is_counted_for_those_that_pass(
    deployments: list[dict[str, Any]],
) -> None:
    passed, whole = deployments
    assert count_passed(passed) > count_passed(whole) == 0
    assert describe_deployment(passed) == describe_deployment(whole)
    for one, other in zip(passed["phases"], whole["phases"], strict=True):
        assert 0 <= other["peak"] - one["peak"] <= KEPT_BYTES, one["name"]
