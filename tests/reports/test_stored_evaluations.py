"""An evaluation in the store, as JSON, and by `unfix report`."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import pytest
from evaluated import make_awful_evaluation, make_fine_evaluation

from harness.cli import options
from harness.cli.report import command
from harness.core.errors import UnfixError
from harness.core.outcomes import RunStatus
from harness.store.database import Store
from harness.store.eval.table import EvalTable


def test_a_saved_evaluation_is_read_whole(tmp_path: Path) -> None:
    store = Store(tmp_path / "a.sqlite")
    evaluation = make_awful_evaluation()
    EvalTable(store).save(evaluation)
    evaluation.seconds = 80.0
    EvalTable(store).save(evaluation)  # again, as it grows
    (listed,) = EvalTable(store).list_runs()
    assert (listed.id, listed.status, listed.green) == (evaluation.id, RunStatus.FINISHED, False)
    assert (listed.counts["same"], listed.faults, listed.caught) == (4, 5, 1)
    for name in (evaluation.id, "eval-2026"):
        assert repr(EvalTable(store).get(name)) == repr(evaluation)  # a NaN is unequal to itself
    assert EvalTable(store).find("nobody") is None
    with pytest.raises(UnfixError, match="holds no evaluation nobody"):
        EvalTable(store).get("nobody")
    evaluation.id += "-b"
    EvalTable(store).save(evaluation)
    with pytest.raises(UnfixError, match="more than one"):
        EvalTable(store).get("eval-2026")


def report_store(store: Path, *names: str, **options: Any) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    arguments = parser.parse_args([*names, "--store", str(store)])
    return command.run_command(argparse.Namespace(**{**vars(arguments), **options}))


def test_report_lists_and_shows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNFIX_HOME", str(tmp_path))
    file = tmp_path / "a.sqlite"
    store = Store(file)
    red = make_awful_evaluation()
    red.id, red.name = "eval-bad", "bad"
    for one in (make_fine_evaluation(), red):
        EvalTable(store).save(one)
    assert report_store(file, list=True) == 0
    listed = capsys.readouterr().out
    assert re.search(
        r"eval-20261121-000000-abcd +eval +2026-11-21\S+ +finished +green +cpu: ", listed
    )
    assert re.search(r"eval-bad +eval +2026-11-21\S+ +finished +red +bad: ", listed)
    monkeypatch.setattr(options, "get_output_width", lambda: 80)
    assert report_store(file, list=True) == 0
    assert "eval-20261121-000000-abcd " in capsys.readouterr().out
    assert report_store(file, list=True, json=True) == 0
    assert [one["id"] for one in json.loads(capsys.readouterr().out)] == [
        "eval-20261121-000000-abcd", "eval-bad"
    ]  # fmt: skip
    extra = {"markdown": tmp_path / "x" / "m.md", "record": tmp_path / "y" / "r.json"}
    assert report_store(file, "eval-2026", json=True, **extra) == 0
    assert json.loads(capsys.readouterr().out)["green"] is True
    assert json.loads(extra["record"].read_text())["id"] == "eval-20261121-000000-abcd"
    assert "Evaluation cpu: green" in extra["markdown"].read_text()
    assert (tmp_path / "reports" / "out" / "eval-20261121-000000-abcd.html").is_file()
    assert (
        report_store(file, "eval-bad", markdown=tmp_path / "bad.md", record=tmp_path / "bad") == 1
    )
    assert "not noticed" in capsys.readouterr().out
    with pytest.raises(UnfixError, match="by itself"):
        report_store(file, "eval-bad", "eval-2026")
    with pytest.raises(UnfixError, match="no JUnit"):
        report_store(file, "eval-bad", junit=tmp_path / "j.xml")
