"""A rehearsal in which layers pass their input on says what one says that runs them all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from rehearsed_models import IS_READY, REASON, rehearse_layers

LAYERS = 7
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


def check_both_ways(home: Path, model: str, layers: int, arguments: list[str]) -> None:
    passed = rehearse_layers(home, model, layers, ["--no-thresholds"], arguments)
    whole = rehearse_layers(home, model, layers, ["--no-thresholds", "--all-layers"], arguments)
    assert count_passed(passed) > count_passed(whole) == 0
    assert describe_deployment(passed) == describe_deployment(whole)
    for one, other in zip(passed["phases"], whole["phases"], strict=True):
        assert 0 <= other["peak"] - one["peak"] <= KEPT_BYTES, one["name"]


def test_all_layers_launch_what_is_counted_for_those_that_pass(home: Path) -> None:
    """The first layer of DeepSeek-V2-Lite is dense, the others have experts."""
    check_both_ways(home, "deepseek-v2-lite", LAYERS, ["--max-total-tokens", "400000"])


@pytest.mark.skipif("UNFIX_NIGHTLY" not in os.environ, reason="a nightly test")
@pytest.mark.parametrize(
    ("model", "arguments"),
    [
        ("gpt-oss-120b", ["--tp", "4"]),
        ("qwen3-next-80b-a3b", ["--tp", "4"]),
        ("qwen3-235b-a22b", ["--tp", "8", "--ep", "8"]),
        ("deepseek-v3", ["--tp", "8", "--dp", "4", "--enable-dp-attention"]),
    ],
)
def test_models_of_several_kinds_of_layers_launch_what_is_counted(
    home: Path, model: str, arguments: list[str]
) -> None:
    check_both_ways(home, model, LAYERS_OF_KINDS, arguments)
