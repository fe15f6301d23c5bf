"""A store that somebody edited ends in one sentence, and nothing of it reaches another store."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import evaluated
import pytest
import sample
from fixture_types import Output
from test_matrix_pages import make_cell, make_run

from harness.cli import main
from harness.cli.commands import KINDS
from harness.core.outcomes import Outcome
from harness.store.database import Store
from harness.store.matrix.table import MatrixTable
from harness.store.prove.table import ProveTable

# The row that is edited: its table, and for an item its part; then the column, or a field of its
# JSON; and the value that no run of ours writes.
EDITS = [
    *[(kind, "runs", "", "status", "half done") for kind in ("prove", "eval", "matrix")],
    ("prove", "runs", "", "started", "yesterday"),
    ("prove", "runs", "", "id", "../../x"),
    ("prove", "runs", "", "data.id", "../../x"),
    ("prove", "runs", "", "data.kind", "../../x"),
    ("prove", "runs", "", "data.settings", {"shard": "1/1000000000000"}),
    ("prove", "runs", "", "data.settings", {"shard": "first/last"}),
    ("prove", "items", "cells", "data.verdict", "regressed"),
    ("prove", "items", "sides", "data.outcome", "fine"),
    ("matrix", "runs", "", "data.of", 10**15),
    ("matrix", "runs", "", "data.number", 0),
    ("matrix", "items", "attempts", "owner", "another cell"),
    ("matrix", "items", "attempts", "data.outcome", "skipped"),
    ("eval", "runs", "", "data.started", 1e300),
    ("eval", "items", "evaluation", "part", "nothing"),
    ("eval", "items", "evaluation", "data.compared", [{"verdict": "proven"}]),
]


def store_run(kind: str, file: Path) -> None:
    store = Store(file)
    runs: dict[str, Any] = {
        "prove": sample.make_run(1),
        "eval": evaluated.make_fine_evaluation(),
        "matrix": make_run(make_cell("a", Outcome.PASSED), make_cell("b", Outcome.FAILED)),
    }
    run, table = runs[kind], KINDS[kind].open_table(store)
    table.begin(run)
    if isinstance(table, ProveTable):
        for cell in run.cells:
            table.save_verdict(run.id, cell)
            for side in cell.sides.values():
                table.save_side(run.id, cell, side)
    if isinstance(table, MatrixTable):
        ended = [(cell.identity, one) for cell in run.cells for one in cell.attempts]
        table.save_attempts(run.id, ended)
    table.save(run)
    store.close()


def edit_store(file: Path, table: str, part: str, column: str, value: Any) -> None:
    with sqlite3.connect(file) as database:
        where = f"part = '{part}'" if part else "1"
        query = f"SELECT rowid, data FROM {table} WHERE {where} ORDER BY rowid DESC"
        row, text = database.execute(query).fetchone()
        column, _, field = column.partition(".")
        if field:
            value = json.dumps({**json.loads(text), field: value})
        database.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (value, row))


@pytest.mark.parametrize(("kind", "table", "part", "column", "value"), EDITS)
def test_an_edited_store_ends_in_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Output,
    kind: str,
    table: str,
    part: str,
    column: str,
    value: Any,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNFIX_HOME", str(tmp_path / "home"))
    edited, own = tmp_path / "edited.sqlite", tmp_path / "own.sqlite"
    store_run(kind, edited)
    page = str(tmp_path / "out" / "page.html")
    assert main.main(["report", "--store", str(edited), "--html", page]) in (0, 1)
    (tmp_path / "out" / "page.html").unlink()
    edit_store(edited, table, part, column, value)
    for words in (["--store", str(edited)], ["--store", str(own), "--merge", str(edited)]):
        Store(own).close()
        capsys.readouterr()
        assert main.main(["report", *words, "--html", page]) in (2, 3)
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith("unfix: ")
        assert str(edited) in error
    assert not list((tmp_path / "out").iterdir())
    with sqlite3.connect(own) as database:
        assert database.execute("SELECT count(*) FROM items").fetchone() == (0,)
