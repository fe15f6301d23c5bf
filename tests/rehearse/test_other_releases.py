"""A release that lacks what a batch is made with: the rehearsal stops with the name of it.

0.5.9 has all that plain batches need. Its CUDA graphs and its scheduler are other ones.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from rehearsed_models import make_command, run_command
from test_scheduled_batches import SPECULATION

from harness.releases import managed_releases

RELEASE = "0.5.9"

pytestmark = pytest.mark.skipif(
    not managed_releases.get_release(RELEASE).is_ready,
    reason=f"needs the environment of {RELEASE}: ./unfix test makes it",
)


def rehearse_two_layers(home: Path, *arguments: str, exit_code: int = 1) -> dict[str, Any]:
    """Rehearse two layers of Llama, by a command that has to end with this code."""
    words = ["--release", RELEASE, "--no-thresholds"]
    command = make_command(home, "llama-3.1-8b", 2, words, arguments)
    return run_command(home, command, (exit_code,))


def test_what_a_release_lacks_for_graphs_is_named(home: Path) -> None:
    deployment = rehearse_two_layers(home, "--cuda-graph-max-bs", "8")
    assert deployment["phases"] == []
    assert deployment["refusal"] == (
        "RuntimeError: No module named 'sglang.srt.model_executor.runner': CUDA graphs of decode "
        "are not rehearsed on this release"
    )


@pytest.mark.skipif("UNFIX_NIGHTLY" not in os.environ, reason="a nightly test")
def test_what_a_release_lacks_for_its_scheduler_is_named_and_plain_batches_are_made(
    home: Path,
) -> None:
    deployment = rehearse_two_layers(home, *SPECULATION)
    assert deployment["phases"] == []
    assert "'sglang.srt.runtime_context': batches of its scheduler are not" in deployment["refusal"]
    deployment = rehearse_two_layers(home, exit_code=0)
    assert deployment["refusal"] == ""
    assert [phase["failure"] for phase in deployment["phases"]] == [""] * 4
