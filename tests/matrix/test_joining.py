"""Merging shards: the whole plan once, or an error that names the mismatch."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from driving import Drive, make_cell
from fixture_types import Output, Patch

from harness.cli.matrix import stored_runs
from harness.cli.report import command
from harness.cli.run_lookup import merge_store
from harness.core.errors import NotReadyError, UnfixError
from harness.core.outcomes import Outcome, RunStatus
from harness.runs.matrix import shards
from harness.runs.matrix.shards import ShardPart
from harness.store.database import Store
from harness.store.matrix.table import MatrixTable
from harness.store.matrix.values import CellAttempt, MatrixCellResult, MatrixRun
from harness.store.prove.table import ProveTable
from harness.store.prove.values import ProveRun

NAMES = [f"cell-{number}" for number in range(7)]


def make_shard(
    number: int, of: int = 3, outcome: Outcome = Outcome.PASSED, **changes: Any
) -> MatrixRun:
    done = [CellAttempt(1, outcome, "so", "then", 2.0, last=True)]
    make = functools.partial(MatrixCellResult, attempts=done)
    cells = [make(n, {"n": n}, "work", [], "") for n in NAMES[number - 1 :: of]]
    shard = MatrixRun(
        *(f"m-{number}", "tried", "file.yaml", "digest-1", len(NAMES), {}),
        *(f"2026-01-01T00:0{number}:00+00:00", RunStatus.FINISHED, 60.0 * number),
        number=number,
        of=of,
        cells=cells,
    )
    for name, value in changes.items():
        setattr(shard, name, value)
    return shard


def make_parts(*runs: MatrixRun) -> list[ShardPart]:
    return [ShardPart(run, f"{place}.sqlite") for place, run in enumerate(runs)]


def test_shards_in_any_order_are_the_whole_plan() -> None:
    whole = shards.merge_shards(make_parts(make_shard(3), make_shard(1), make_shard(2)))
    assert sorted(one.identity for one in whole.cells) == NAMES
    assert whole.green
    assert (whole.of, whole.status, whole.seconds) == (1, RunStatus.FINISHED, 180.0)
    assert (whole.started, whole.id) == ("2026-01-01T00:01:00+00:00", "m-1+m-2+m-3")


def test_a_red_or_a_stopped_shard_makes_the_whole_run_red() -> None:
    red = shards.merge_shards(
        make_parts(make_shard(1), make_shard(2, outcome=Outcome.FAILED), make_shard(3))
    )
    assert red.counts == {"passed": 5, "failed": 2}
    assert red.exit_code == 1
    stopped = make_shard(3, status=RunStatus.STOPPED)
    stopped.cells[0].attempts = []
    whole = shards.merge_shards(make_parts(make_shard(1), make_shard(2), stopped))
    assert whole.problems == ["1 cell without an outcome", "the run was stopped"]


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ([make_shard(1), make_shard(3)],
         r"a shard is absent: 2/3; run `unfix matrix run file.yaml --shard"),
        ([make_shard(2)], r"shards are absent: 1/3, 3/3"),
        ([make_shard(1), make_shard(2), make_shard(3), make_shard(2, id="again")],
         r"there twice: 2/3 in 1.sqlite and in 3.sqlite"),
        ([make_shard(1), make_shard(2, plan="digest-2"), make_shard(3)],
         r"different plans: 0.sqlite, 2.sqlite: plan digest-1 in 3; 1.sqlite: plan digest-2"),
        ([make_shard(1), make_shard(2, of=2)],
         r"different plans: .*digest-1 in 3; .*digest-1 in 2"),
        ([make_shard(1), make_shard(2, cells=make_shard(1).cells), make_shard(3)],
         "cell cell-0 is in shard 2/3 and"),
        ([make_shard(1), make_shard(2, cells=[]), make_shard(3)], "hold 5 of the plan's 7 cells"),
    ],
)  # fmt: skip
def test_missing_duplicate_or_foreign_shards_are_refused(runs: list[MatrixRun], words: str) -> None:
    with pytest.raises(UnfixError, match=words):
        shards.merge_shards(make_parts(*runs))


def test_the_same_run_in_two_stores_is_one_run_and_the_further_one_counts() -> None:
    half = make_shard(2, status=RunStatus.STOPPED)
    half.cells = [MatrixCellResult(one.identity, one.values, "work", [], "") for one in half.cells]
    whole = shards.merge_shards(make_parts(make_shard(1), half, make_shard(2), make_shard(3)))
    assert whole.counts == {"passed": 7}


def test_of_a_store_the_newest_run_of_each_shard_counts_and_no_single_cell() -> None:
    old = make_shard(1, id="old", started="2025-01-01T00:00:00+00:00")
    other = make_shard(1, id="other", plan="before", started="2025-01-01T00:00:00+00:00")
    single = make_shard(1, id="single", only=["cell-0"], started="2027-01-01T00:00:00+00:00")
    found = shards.select_newest_shards([other, old, make_shard(1), make_shard(2), single], "a")
    assert [run.id for run in found] == ["m-1", "m-2"]
    with pytest.raises(UnfixError, match="a holds no run of"):
        shards.select_newest_shards([single], "a")


def report_runs(*words: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run_command(parser.parse_args(list(words)))


def store_runs(file: Path, *runs: MatrixRun) -> str:
    store = Store(file)
    for run in runs:
        status, run.status = run.status, RunStatus.RUNNING
        MatrixTable(store).begin(run)
        ended = [(one.identity, attempt) for one in run.cells for attempt in one.attempts]
        MatrixTable(store).save_attempts(run.id, ended)
        run.status = status
        MatrixTable(store).save(run)
    store.close()
    return str(file)


def test_commands_run_and_merge_shards(drive: Drive, capsys: Output, monkeypatch: Patch) -> None:
    drive.write(*(make_cell(f"c{n}", "true" if n else "exit 1") for n in range(5)))
    stores = []
    for number in (1, 2):
        monkeypatch.setenv("UNFIX_HOME", str(drive.root / f"machine-{number}"))
        assert drive.run("--shard", f"{number}/2") == (1 if number == 1 else 0)
        stores.append(str(drive.root / f"machine-{number}" / ".unfix" / "runs.sqlite"))
    monkeypatch.setenv("UNFIX_HOME", str(drive.root / "here"))
    with pytest.raises(UnfixError, match="a shard is absent: 2/2"):
        report_runs("--merge", stores[0])
    capsys.readouterr()
    assert report_runs("--merge", *stores, "--json") == 1
    merged = json.loads(capsys.readouterr().out)
    assert merged["counts"] == {"failed": 1, "passed": 4}
    assert len(merged["cells"]) == 5
    # It is in this store now: once more by its runs' names, and in the list.
    ids = merged["id"].split("+")
    assert report_runs(*ids) == 1
    capsys.readouterr()
    assert report_runs("--list", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert [one["id"] for one in listed] == ids
    assert [(one["shard"], one["green"]) for one in listed] == [("1/2", False), ("2/2", True)]


def test_a_store_without_a_matrix_among_those_with_one_is_an_error(drive: Drive) -> None:
    one = store_runs(drive.root / "one.sqlite", make_shard(1, 1))
    other = drive.root / "other.sqlite"
    store = Store(other)
    ProveTable(store).begin(ProveRun("p-1", "prove", "2026-01-01T00:00:00+00:00"))
    store.close()
    with pytest.raises(UnfixError, match=r"other\.sqlite holds no run of `unfix matrix run`"):
        report_runs("--merge", one, str(other))
    # Proven cells of a run given by name are merged all the same; this one proved nothing.
    assert report_runs("--proofs", "--merge", one, str(other)) == 1


def test_the_newest_matrix_run_is_shown_unless_a_later_run_is_not_part_of_it(drive: Drive) -> None:
    arguments = argparse.Namespace(proofs=False, runs=[], merge=[])
    store = Store(Path(store_runs(drive.root / "one.sqlite", make_shard(2, 2))))
    ProveTable(store).begin(ProveRun("p-1", "prove", "2026-01-01T00:01:00+00:00"))
    assert stored_runs.find_requested_run(store, arguments) is not None
    ProveTable(store).begin(ProveRun("p-2", "prove", "2026-01-01T00:03:00+00:00"))
    assert stored_runs.find_requested_run(store, arguments) is None
    proving = make_shard(2, 2)
    proving.cells[0].command = ["unfix", "prove", "all"]
    store = Store(Path(store_runs(drive.root / "two.sqlite", proving)))
    ProveTable(store).begin(ProveRun("p-1", "prove", "2026-01-01T00:03:00+00:00"))
    assert stored_runs.find_requested_run(store, arguments) is not None


def test_a_store_of_another_format_or_none_at_all_is_an_error(drive: Drive) -> None:
    one = store_runs(drive.root / "one.sqlite", make_shard(1, 2))
    other = store_runs(drive.root / "other.sqlite", make_shard(2, 2))
    with contextlib.closing(sqlite3.connect(other)) as changed:
        changed.execute("PRAGMA user_version = 99")
    with pytest.raises(NotReadyError, match=r"other\.sqlite is of another version of unfix"):
        report_runs("--merge", one, other)
    with pytest.raises(UnfixError, match=r"there is no store .*gone\.sqlite"):
        report_runs("--merge", one, str(drive.root / "gone.sqlite"))
    assert MatrixTable(Store()).list_runs() == [], "nothing is taken in that cannot be joined"


def test_a_merge_takes_what_is_further_along(tmp_path: Path) -> None:
    half = make_shard(1, 1, status=RunStatus.STOPPED)
    half.cells[0].attempts = []
    here = Store(Path(store_runs(tmp_path / "here", half)))
    other_file = store_runs(tmp_path / "there", make_shard(1, 1))
    merge_store(here, Path(other_file))
    found = MatrixTable(here).find("m-1")
    assert found is not None
    assert found.counts == {"passed": 7}
    merge_store(here, Path(store_runs(tmp_path / "behind", half)))
    found = MatrixTable(here).find("m-1")
    assert found is not None
    assert found.green
