"""`unfix matrix plan` and `unfix matrix shards`, as users call them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from calling import PATIENCE_SECONDS
from fixture_types import Output, Patch
from writing import TREE, WHOLE_PAGES, make_plan, make_text, write_file

from harness.cli.main import main
from harness.runs.matrix import plan_builder, seed_bugs
from harness.runs.matrix.cell_plan import MatrixPlan

CONTENT = make_text(constraints=(TREE, WHOLE_PAGES), more="seeds: true\n")


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: Patch, tmp_path: Path) -> None:
    """Hide this checkout's stored runs."""
    monkeypatch.setenv("UNFIX_HOME", str(tmp_path / "home"))


def run_command(capsys: Output, *words: str) -> str:
    assert main(["matrix", *words]) == 0
    return capsys.readouterr().out


def test_a_plan_says_what_is_in_and_why(capsys: Output, tmp_path: Path) -> None:
    out = run_command(capsys, "plan", str(write_file(tmp_path, CONTENT)))
    assert "7 cells in 7 configurations, 2 of them fixed; 37 of 37 tuples covered" in out
    assert "one after the other unknown" in out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "all axes 2 37 37 3" in lines
    assert "when kv fp8: only page 16 1 tuple this kernel reads whole pages" in lines
    assert any(
        line.startswith("27338 flashinfer's draft")
        and line.endswith("part speculative EAGLE, topk 4 no axis decode; no axis graph")
        for line in lines
    )
    assert any(line.startswith("23268 ") and " out no axis device; " in line for line in lines)
    assert any("seed 27338, in part; seed 24617, in part" in line for line in lines)


def test_json_says_all_of_it(capsys: Output, tmp_path: Path) -> None:
    file = write_file(tmp_path, CONTENT)
    data = json.loads(run_command(capsys, "plan", "--json", str(file)))
    found = plan_builder.plan_matrix(file)
    assert data["digest"] == found.digest
    assert [cell["identity"] for cell in data["cells"]] == [c.identity for c in found.cells]
    assert {"dropped", "coverage", "seeds", "estimated", "axes", "name", "seconds"} <= set(data)


def test_wide_shows_the_commands(capsys: Output, tmp_path: Path) -> None:
    file = str(write_file(tmp_path, CONTENT))
    assert "unfix eval" not in run_command(capsys, "plan", file)
    assert "unfix eval --release 0.5.16" in run_command(capsys, "plan", "--wide", file)


def test_cells_that_ran_give_an_estimate_and_change_no_cell(tmp_path: Path) -> None:
    file = write_file(tmp_path, CONTENT)
    unknown = plan_builder.plan_matrix(file)
    some = {cell.identity: 60.0 + 20 * n for n, cell in enumerate(unknown.cells[:2])}
    known = plan_builder.plan_matrix(file, some)
    assert (unknown.estimated, known.estimated) == (None, 70.0 * len(known.cells))
    assert known.digest == unknown.digest
    assert [cell.seconds for cell in known.cells[:3]] == [60.0, 80.0, None]


def compute_file_digest(folder: Path, content: str) -> str:
    return make_plan(folder, content).digest


def test_a_digest_is_of_what_is_run_and_of_nothing_else(tmp_path: Path) -> None:
    first = compute_file_digest(tmp_path, CONTENT)
    assert compute_file_digest(tmp_path, CONTENT + "# a comment\n") == first
    assert compute_file_digest(tmp_path, CONTENT.replace("whole pages", "pages")) == first
    for other in (
        CONTENT.replace("--page-size 16", "--page-size 32"),
        CONTENT.replace("kind: eval,", "kind: eval, limit: 7,"),
        CONTENT.replace("name: small", "name: other"),
        CONTENT.replace("seeds: true", "seeds: false"),
        CONTENT.replace(f"  - {WHOLE_PAGES}\n", ""),
    ):
        assert other != CONTENT
        assert compute_file_digest(tmp_path, other) != first


def test_a_cell_has_its_name_in_every_plan(tmp_path: Path) -> None:
    plain = {c.identity: c.values for c in make_plan(tmp_path, CONTENT).cells}
    others = [make_plan(tmp_path, CONTENT.replace("seeds: true", f"seed: {n}")) for n in range(9)]
    shared = [cell for plan in others for cell in plan.cells if cell.identity in plain]
    assert shared
    assert all(cell.values == plain[cell.identity] for cell in shared)
    assert len(plain) == len(make_plan(tmp_path, CONTENT).cells)


def test_another_process_plans_the_same(tmp_path: Path) -> None:
    file = write_file(tmp_path, CONTENT)
    here = plan_builder.plan_matrix(file)
    for salt in ("1", "2"):
        words = [sys.executable, "-m", "harness", "matrix", "plan", "--json", str(file)]
        environment = {**os.environ, "PYTHONHASHSEED": salt}
        done = subprocess.run(
            words, env=environment, capture_output=True, check=True, timeout=PATIENCE_SECONDS
        )
        assert json.loads(done.stdout)["digest"] == here.digest


def test_shards_are_shown_with_how_even_they_are(capsys: Output, tmp_path: Path) -> None:
    out = run_command(capsys, "shards", "3", str(write_file(tmp_path, CONTENT)))
    rows = [" ".join(line.split()) for line in out.splitlines()[1:4]]
    assert rows == ["1/3 3 unknown", "2/3 2 unknown", "3/3 2 unknown"]
    assert "0 of them measured; the slowest takes 1.29 times the mean" in out


def test_github_gets_one_line_that_its_matrix_takes(capsys: Output, tmp_path: Path) -> None:
    file = write_file(tmp_path, CONTENT)
    out = run_command(capsys, "shards", "2", "--github", str(file))
    assert out.count("\n") == 1
    plan = plan_builder.plan_matrix(file).digest
    assert json.loads(out) == {
        "include": [
            {"shard": 1, "of": 2, "share": "1/2", "plan": plan, "cells": 4, "seconds": None},
            {"shard": 2, "of": 2, "share": "2/2", "plan": plan, "cells": 3, "seconds": None},
        ]
    }


def test_a_file_that_cannot_be_planned_is_a_wrong_call(capsys: Output, tmp_path: Path) -> None:
    assert main(["matrix", "plan", str(tmp_path / "none.yaml")]) == 2
    assert "No such file" in capsys.readouterr().err
    assert main(["matrix", "plan", "nightly"]) == 2
    assert "no matrix is called nightly; there are cpu, fleet, h200" in capsys.readouterr().err
    assert main(["matrix", "shards", "99", str(write_file(tmp_path, CONTENT))]) == 2
    assert "7 cells make from 1 to 7 shards, not 99" in capsys.readouterr().err


def plan_file(name: str) -> MatrixPlan:
    return plan_builder.plan_matrix(Path(name))


@pytest.mark.parametrize(("name", "most"), [("cpu", 18), ("h200", 48)])
def test_our_matrices_are_covered_in_few_cells_and_in_seconds(name: str, most: int) -> None:
    start, begun = time.process_time(), time.monotonic()
    found = plan_file(name)
    assert time.process_time() - start < 5
    assert 0 < found.seconds <= time.monotonic() - begun
    assert len(found.axes) >= 9
    assert all(group.covered == group.tuples for group in found.coverage)
    assert len(found.cells) <= most


def test_a_seed_is_in_whole_where_its_axes_are(tmp_path: Path) -> None:
    known = seed_bugs.read_seed_bugs()
    axes: dict[str, Any] = {}
    for bug in known.seeds:
        for axis, names in bug.values.items():
            # Both an axis and its value go by their last names.
            axes.setdefault(known.axes[axis][-1], {"other": ""})[names[-1]] = ""
    content = json.dumps(
        {
            "name": "all",
            "seeds": "true",
            "axes": axes,
            "run": {"x": {"command": "serve " + " ".join(f"{{{axis}}}" for axis in axes)}},
        }
    )
    found = make_plan(tmp_path, content)
    assert [seed.pr for seed in found.seeds] == [27338, 24617, 20606, 23268, 25418]
    assert {seed.state for seed in found.seeds} == {"whole"}
    for seed in found.seeds:
        (cell,) = [cell for cell in found.cells if f"seed {seed.pr}" in cell.why]
        assert seed.values.items() <= cell.values.items()


def test_a_seed_that_a_constraint_forbids_is_out_and_says_by_which(tmp_path: Path) -> None:
    never = "{when: {topk: 4}, never: {speculative: EAGLE}, because: no tree yet}"
    found = make_plan(tmp_path, make_text(constraints=(never,), more="seeds: true\n"))
    first = found.seeds[0]
    assert (first.pr, first.state) == (27338, "out")
    assert "constraint 1 (no tree yet, line 9)" in first.lacking
    assert found.dropped[0].fixed == [f"seed 27338: {first.title}"]
