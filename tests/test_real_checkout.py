"""A checkout of SGLang's real sources, with commits on top: added, proven and reviewed.

It is built from the newest wheel on this machine. It needs that release's environment, and minutes.
"""

from __future__ import annotations

import json
import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from calling import run_program
from checkouts import SglangCheckout

from harness.core import paths
from harness.fixes.patch_plan import Direction, ToggleChoice, make_plan
from harness.fixes.registry import toggle_catalogue
from harness.releases import managed_releases, pins
from harness.store.pr.values import PrPart

NEWEST = managed_releases.get_newest_release()
TOGGLE = "20606"  # a fix in Python whose guards take seconds
GUARD = "suites/topk_offset"
pytestmark = [
    pytest.mark.skipif("UNFIX_NIGHTLY" not in os.environ, reason="a nightly test"),
    pytest.mark.skipif(
        not (NEWEST.is_ready and NEWEST.any_wheel),
        reason=f"needs SGLang {NEWEST.name}: ./unfix releases add {NEWEST.name}",
    ),
]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> SglangCheckout:
    """The wheel's sources as v0.5.23, a commit that changes nothing, one that takes a fix back."""
    checkout = SglangCheckout(tmp_path_factory.mktemp("real") / "sglang")
    wheel = NEWEST.any_wheel
    assert wheel is not None
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith("sglang/")]
        archive.extractall(checkout.folder / "python", names)
    required = ",\n".join(f"  {str(one)!r}" for one in pins.read_wheel_requirements(wheel))
    project = f'[project]\nname = "sglang"\ndynamic = ["version"]\ndependencies = [\n{required}\n]'
    (checkout.folder / "python" / "pyproject.toml").write_text(project)
    checkout.commit({})
    checkout.git("tag", f"v{NEWEST.name}")
    checkout.commit({"srt/notes_of_a_test.py": "NOTE = 1\n"})
    catalogue = toggle_catalogue.load_catalogue()
    (toggle,) = (one for one in catalogue if one.id == TOGGLE)
    reverted = ToggleChoice(toggle, Direction.REVERT)
    plan = make_plan([reverted], NEWEST.open_sources(), NEWEST.name)
    for module in plan.modules:
        name = module.module.removeprefix("sglang.").replace(".", "/")
        checkout.commit({f"{name}.py": module.text})
    return checkout


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace of its own that shares the base and the wheels of this one."""
    home = tmp_path_factory.mktemp("home")
    (home / ".releases").mkdir()
    for name in ("base", "wheels", NEWEST.name):
        (home / ".releases" / name).symlink_to(paths.releases_folder() / name)
    return home


def call_unfix(home: Path, *words: str) -> tuple[int, Any, str]:
    environment = {**os.environ, "UNFIX_HOME": str(home)}
    command = [sys.executable, "-m", "harness", *words, "--json"]
    done = run_program(command, cwd=paths.project_folder(), env=environment, timeout=1500)
    return done.returncode, json.loads(done.stdout or "null"), done.stderr


def test_a_checkout_is_added_and_proven(checkout: SglangCheckout, home: Path) -> None:
    commit = checkout.git("rev-parse", "HEAD~1")
    word = f"{checkout.folder}@HEAD~1"
    code, proof, log = call_unfix(
        home, "prove", TOGGLE, GUARD, "--release", word, "--profile", "smoke"
    )
    assert code == 0, log
    (facts,) = proof["releases"]
    assert facts["release"] == f"g{commit[:12]}"
    assert {cell["verdict"] for cell in proof["cells"]} <= {"proven", "n/a"}
    assert {cell["state"] for cell in proof["cells"]} == {"fixed"}
    assert f"the lock of SGLang {NEWEST.name} fits" in log
    code, listed, log = call_unfix(home, "releases", "list")
    assert (code, f"g{commit[:12]}" in json.dumps(listed)) == (0, True), log


def test_a_review_finds_the_fix_that_a_commit_takes_back(
    checkout: SglangCheckout, home: Path
) -> None:
    words = ["pr", str(checkout.folder), "HEAD~1..HEAD", "--profile", "smoke", "--faults", "4"]
    code, review, log = call_unfix(home, *words, "--architectures", "0", "--deployments", "0")
    assert code == 1, log
    assert review["headline"].startswith(f"takes back 1 fix: {TOGGLE}")
    failing = [one for one in review["guards"] if one["toggle"] == TOGGLE]
    assert failing
    assert {(one["plain_before"], one["plain_after"]) for one in failing} >= {("passed", "failed")}
    assert review["parts"] == list(PrPart)
    code, review, log = call_unfix(
        home, *words[:2], "HEAD~2..HEAD~1", "--only", "toggles,suites,audit"
    )
    assert (code, review["headline"]) == (0, "nothing that is watched here gets worse"), log
