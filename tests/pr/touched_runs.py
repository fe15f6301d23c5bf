"""Changes, runs and reviews for the tests of what a change touches."""

from __future__ import annotations

import sys
from pathlib import Path

from fixture_types import Patch
from reviewed_files import ROWS

from harness.cli import guard_runs
from harness.cli.pr.review import Review
from harness.cli.rehearse import command as rehearse_command
from harness.core.outcomes import RunStatus
from harness.releases.source_trees import FolderSourceTree
from harness.runs.pr import source_change
from harness.runs.pr.request import PrRequest
from harness.runs.pr.source_change import SourceChange
from harness.runs.pr.touched_items import ItemKind
from harness.runs.rehearse.deployment import Deployment
from harness.runs.rehearse.request import RehearseRequest
from harness.store.database import Store
from harness.store.pr.values import PrPart, PrRun
from harness.store.rehearse.table import RehearsalTable
from harness.store.rehearse.values import DeploymentResult, RehearsalRun, RehearsedPhase
from harness.workers.release_target import ReleaseTarget

SMALL, LARGE = "qwen3-0.6b-tp1", "llama-3.1-405b-tp8"
COUNT_ROWS = {"sglang.srt.rows": ["count_rows", "make_table"]}
KIND = ItemKind("deployment", "show {names} {base} {head}", "run {names} on {base}", "--all", 2)


def make_tree(folder: Path, text: str, name: str = "rows") -> FolderSourceTree:
    package = folder / "sglang" / "srt"
    package.mkdir(parents=True)
    (package / f"{name}.py").write_text(text)
    return FolderSourceTree(folder, folder.name)


def make_change(tmp_path: Path) -> SourceChange:
    base = make_tree(tmp_path / "base", ROWS)
    head = make_tree(tmp_path / "head", ROWS.replace("size + 1", "size"))
    return source_change.read_change(base, head, ["python/sglang/srt/rows.py"])


def make_result(name: str, functions: dict[str, list[str]], seconds: float) -> DeploymentResult:
    result = DeploymentResult(name, name, "H200", 8, functions=functions)
    result.seconds = seconds
    result.phases = [RehearsedPhase("decode", "one request")]
    return result


def make_run(release: str, results: list[DeploymentResult]) -> RehearsalRun:
    run = RehearsalRun(id=f"run-{release}", started="", release=release, status=RunStatus.FINISHED)
    run.deployments, run.planned = results, [one.name for one in results]
    run.has_thresholds = False
    return run


def save_run(store: Store, run: RehearsalRun) -> None:
    RehearsalTable(store).begin(run)
    for number, result in enumerate(run.deployments):
        RehearsalTable(store).save_result(run.id, number, result)
    RehearsalTable(store).save(run)


def make_review(tmp_path: Path, store: Store, budget: float) -> Review:
    request = PrRequest(
        checkout=tmp_path,
        range="a..b",
        parts=[PrPart.REHEARSE],
        profile="default",
        jobs=None,
        memory=None,
        fault_limit=40,
        seed=0,
        zoo_limit=2,
        deployment_limit=2,
        accepted=[],
        budget=budget,
        toggles=[],
    )
    change = make_change(tmp_path)
    base, head = (
        ReleaseTarget(one.name, Path(sys.executable), one, one.name)
        for one in (change.base, change.head)
    )
    run = PrRun("r", "", str(tmp_path), "a..b", "base", "head", planned=[PrPart.REHEARSE])
    review = Review(request, run, store, base, head, change, started=0.0)
    review.__dict__["listed_kernels"] = []  # no worker reads the kernels here
    return review


class PlayedRehearsals:
    """Rehearsals of a base and a head whose deployments run `count_rows` in some seconds."""

    def __init__(self, store: Store, patch: Patch) -> None:
        self.store = store
        self.calls: list[tuple[str, list[str]]] = []  # releases, and the deployments of each
        self.failure_of_head = ""
        patch.setattr(rehearse_command, "rehearse_release", self.rehearse)
        patch.setattr(guard_runs, "digest_guards_and_toggles", lambda *_: "of today")
        patch.setattr(Review, "seconds_left", 300.0)

    def rehearse(
        self, target: ReleaseTarget, request: RehearseRequest, deployments: list[Deployment]
    ) -> RehearsalRun:
        names = [one.name for one in deployments]
        self.calls.append((target.name, names))
        functions = COUNT_ROWS if target.requested_as != "silent" else {}
        run = make_run(target.name, [make_result(name, functions, 1.0) for name in names])
        run.id += f"-{len(self.calls)}"
        run.code = guard_runs.digest_lane_code(target, [])
        if target.name == "head":
            run.deployments[0].phases[0].failure = self.failure_of_head
        save_run(self.store, run)
        return run
