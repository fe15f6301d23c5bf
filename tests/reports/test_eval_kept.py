"""An evaluation in the store, as data, and by `unfix report`."""

from __future__ import annotations

import argparse
import json
import os
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from evaluated import LONG, awful, fine

from harness.cli.eval import shown
from harness.cli.report import command
from harness.errors import UnfixError
from harness.store.database import Store
from harness.store.file import EVALUATIONS


def test_what_is_kept_is_what_was_saved(tmp_path: Path) -> None:
    store = Store(tmp_path / "a.sqlite")
    made = awful()
    store.save_evaluation(made)
    made.seconds = 80.0
    store.save_evaluation(made)  # again, as it grows
    (listed,) = store.evaluations()
    assert (listed.identity, listed.state, listed.green) == (made.identity, "done", False)
    assert (listed.counts["same"], listed.faults, listed.caught) == (4, 5, 1)
    for name in (made.identity, "eval-2026"):
        assert repr(store.evaluation(name)) == repr(made)  # a NaN is not itself
    assert store.find_evaluation("nobody") is None
    with pytest.raises(UnfixError, match="holds no evaluation nobody"):
        store.evaluation("nobody")
    made.identity += "-b"
    store.save_evaluation(made)
    with pytest.raises(UnfixError, match="more than one"):
        store.evaluation("eval-2026")


def test_one_whose_process_is_gone_was_stopped(tmp_path: Path) -> None:
    file = tmp_path / "a.sqlite"
    made = fine()
    made.state = "running"
    pid = os.fork()
    if not pid:
        Store(file).save_evaluation(made)
        os._exit(0)
    os.waitpid(pid, 0)
    store = Store(file)
    assert store.evaluations()[0].state == "stopped"
    assert store.evaluation(made.identity).state == "stopped"
    store.save_evaluation(made)
    assert store.evaluation(made.identity).state == "running"


def test_stores_merge_and_a_whole_one_stays(tmp_path: Path) -> None:
    here, there = Store(tmp_path / "a"), Store(tmp_path / "b")
    half, whole = fine(), fine()
    half.state, half.compared = "stopped", []
    here.save_evaluation(half)
    there.save_evaluation(whole)
    here.merge(tmp_path / "b")
    assert here.evaluation(whole.identity) == whole
    there.save_evaluation(half)
    here.merge(tmp_path / "b")
    assert here.evaluation(whole.identity) == whole


def test_a_store_from_before_there_were_evaluations_is_taken_on(tmp_path: Path) -> None:
    file = tmp_path / "a.sqlite"
    Store(file).close()
    with sqlite3.connect(file) as old:
        old.execute("DROP TABLE evaluations")
        old.execute("PRAGMA user_version = 2")
    store = Store(file)
    store.save_evaluation(fine())
    assert len(Store(file).evaluations()) == 1
    assert EVALUATIONS.strip().rstrip(";") in "".join(
        sql for (sql,) in store._db.execute("SELECT sql FROM sqlite_master WHERE sql NOT NULL")
    )


def test_json_is_whole_and_strict() -> None:
    data = shown.to_json(awful())
    text = json.dumps(data, allow_nan=False, ensure_ascii=False).encode()
    back = json.loads(text)
    assert back["green"] is False
    assert len(back["problems"]) == len(awful().problems)
    assert back["served"][4]["answers"][0]["text"].startswith(LONG)
    assert len(back["served"][0]["answers"]) == 80


# `unfix report`


def report(store: Path, *names: str, **options: Any) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    given = parser.parse_args([*names, "--store", str(store)])
    return command.run(argparse.Namespace(**{**vars(given), **options}))


def test_report_lists_and_shows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNFIX_HOME", str(tmp_path))
    file = tmp_path / "a.sqlite"
    store = Store(file)
    red = awful()
    red.identity, red.name = "eval-bad", "bad"
    for one in (fine(), red):
        store.save_evaluation(one)
    assert report(file, list=True) == 0
    listed = capsys.readouterr().out
    assert re.search(r"eval-20261121-000000-abcd +eval +2026-11-21\S+ +done +green +cpu: ", listed)
    assert re.search(r"eval-bad +eval +2026-11-21\S+ +done +red +bad: ", listed)
    assert report(file, list=True, json=True) == 0
    assert [one["id"] for one in json.loads(capsys.readouterr().out)] == [
        "eval-20261121-000000-abcd", "eval-bad"
    ]  # fmt: skip
    extra = {"markdown": tmp_path / "x" / "m.md", "record": tmp_path / "y" / "r.json"}
    assert report(file, "eval-2026", json=True, **extra) == 0
    assert json.loads(capsys.readouterr().out)["green"] is True
    assert json.loads(extra["record"].read_text())["identity"] == "eval-20261121-000000-abcd"
    assert "Evaluation cpu: green" in extra["markdown"].read_text()
    assert (tmp_path / "reports" / "out" / "eval-20261121-000000-abcd.html").is_file()
    assert report(file, "eval-bad", markdown=tmp_path / "bad.md", record=tmp_path / "bad") == 1
    assert "not noticed" in capsys.readouterr().out
    with pytest.raises(UnfixError, match="by itself"):
        report(file, "eval-bad", "eval-2026")
    with pytest.raises(UnfixError, match="no JUnit"):
        report(file, "eval-bad", junit=tmp_path / "j.xml")
