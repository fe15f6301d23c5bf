"""A search over real releases with a real guard: the step, and the fix that explains it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from calling import run_program

from harness.core import paths
from harness.releases import managed_releases

GUARD = "test_only_a_batch_with_offsets_is_told_ragged"  # of 20606
RELEASES = ("0.5.9", "0.5.18", "0.5.23")


@pytest.mark.skipif(
    not all(managed_releases.get_release(name).is_ready for name in RELEASES),
    reason=f"needs the environments of {', '.join(RELEASES)}: ./unfix test makes them",
)
@pytest.mark.parametrize(
    "among",
    [
        RELEASES[:2],
        pytest.param(
            RELEASES,
            marks=[
                pytest.mark.skipif("UNFIX_NIGHTLY" not in os.environ, reason="a nightly test"),
            ],
        ),
    ],
    ids=["two", "three"],
)
def test_the_release_and_the_fix_that_explains_it(tmp_path: Path, among: tuple[str, ...]) -> None:
    words = ["--among", ",".join(among), "--good", among[-1], "--bad", among[0]]
    page = tmp_path / "page.html"
    words += ["--profile", "smoke", "--json", "--html", str(page), "--", GUARD]
    command = [sys.executable, "-m", "harness", "bisect", "releases", *words]
    done = run_program(command, cwd=paths.project_folder(), timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["step"]["before"], found["step"]["after"]) == ("0.5.9", "0.5.18")
    sets = {part["name"]: part["minimal_sets"] for part in found["toggle_searches"]}
    assert sets == {"what mends it": [["20606"]], "what breaks it": [["20606"]]}
    assert "20606: buggy → fixed" in found["step"]["changed"]
    assert "putting 20606 into 0.5.9 mends it" in found["summary"]
    assert "20606" in page.read_text()
