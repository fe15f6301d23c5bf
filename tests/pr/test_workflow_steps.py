"""The steps of the review and of the action, taken out of their files and run on a checkout."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from checkouts import SglangCheckout
from made_up_toggle import FIXED_FORM
from reviewed_files import ROWS
from workflow_runner import WorkflowRunner

from harness.core import paths

ROOT = paths.project_folder()
# `unfix` with one toggle, no managed releases, and its files beside it.
PROGRAM = """\
#!{python}
import os, sys
from pathlib import Path
sys.path[:0] = [{root!r}]
os.environ["UNFIX_HOME"] = os.path.dirname(os.path.abspath(__file__))
from harness.core import paths
from harness.releases import managed_releases
paths.toggles_folder = lambda: Path({toggles!r})
managed_releases.list_releases = lambda device="cpu": []
from harness.cli.main import main
words = sys.argv[1:]
if "--base" in words:
    sys.exit(0)  # recording a base needs its environment
sys.exit(main(words))
"""


def read_yaml(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text())


@pytest.fixture
def runner(tmp_path: Path, checkout: SglangCheckout, toggles: Path) -> WorkflowRunner:
    home = tmp_path / "unfix"
    (home / ".ci").mkdir(parents=True)
    (home / ".ci" / "review").write_bytes((ROOT / ".ci" / "review").read_bytes())
    program = home / "unfix"
    program.write_text(PROGRAM.format(python=sys.executable, root=str(ROOT), toggles=str(toggles)))
    program.chmod(0o755)
    runner = WorkflowRunner(
        tmp_path / "jobs", {"sglang": checkout.folder, "unfix": home}, read_yaml("action.yml")
    )
    runner.folder.mkdir()
    git = SglangCheckout(home, root="")  # the workflow names its cache by unfix's commit
    git.git("commit", "-q", "--allow-empty", "-m", "unfix")
    return runner


@pytest.mark.parametrize(
    ("text", "headline"),
    [
        (ROWS.replace(FIXED_FORM, FIXED_FORM.replace(" + 1", "")), "takes back 1 fix: made-up"),
        (ROWS.replace("OTHER = 3", "OTHER = 4"), "nothing that these parts read gets worse"),
    ],
)
def test_the_workflow_reviews_a_pull_request(
    checkout: SglangCheckout,
    runner: WorkflowRunner,
    text: str,
    headline: str,
) -> None:
    base = checkout.git("rev-parse", "HEAD")
    head = checkout.commit({"srt/rows.py": text})
    event = {
        "github.event.pull_request.base.sha": base,
        "github.event.pull_request.head.sha": head,
        "github.event.pull_request.number": "7",
        "inputs.harness": "owner/unfix",
        "inputs.harness-ref": "main",
    }
    jobs = read_yaml(".github/workflows/review.yml")["jobs"]
    runner.variables = {"BASE": base, "HEAD": head}
    outputs = runner.run_job("base", jobs["base"], event)
    assert outputs["commit"] == base
    assert outputs["key"].startswith("unfix-base-")
    needs = {f"needs.base.outputs.{name}": value for name, value in outputs.items()}
    # The parts of one machine: the toggles, which need no environment of either end.
    part = {"matrix.part": "toggles", "strategy.job-index": "0"}
    runner.run_job("review", jobs["review"], event | needs | part)
    report = runner.folder / "artifacts" / "unfix-part-0"
    assert json.loads((report / "review.json").read_text())["headline"].startswith(headline)
    assert (report / "review.md").read_text() == (runner.folder / "review/summary").read_text()
    is_red = headline.startswith("takes back")
    assert [one.startswith("the action: The review: 1") for one in runner.failures] == (
        [True] if is_red else []
    )
    # The parts of the machines that are missing here keep the joined review from being green.
    runner.failures.clear()
    runner.run_job("report", jobs["report"], event)
    (failure,) = runner.failures
    assert "suites" in failure
    joined = runner.folder / "artifacts" / "unfix-review"
    assert (joined / "number").read_text() == "7\n"
    for name in ("review.md", "review.html"):
        assert ("made-up" in (joined / name).read_text()) is is_red
    (sarif,) = json.loads((joined / "review.sarif").read_text())["runs"]
    errors = [one for one in sarif["results"] if one["level"] != "note"]
    assert bool(errors) is is_red
    assert runner.ran == [
        "The commit that the change left, and the name of its cache",
        "The review",
        "The review",
        "One review of all parts",
    ]
