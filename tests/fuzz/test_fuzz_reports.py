"""The identity of a failure, the lines that ran, and the report of a run."""

from __future__ import annotations

import json
import linecache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nights import make_record
from rich.console import Console

from harness.cli import options, progress_display
from harness.cli.fuzz.progress import FuzzProgress
from harness.core import paths
from harness.runs.fuzz import failure_files, failure_identity
from harness.runs.fuzz.messages import (
    FailureRecord,
    FileCoverage,
    FoundFailure,
    FuzzResult,
    FuzzTestResult,
    RunFailure,
)
from harness.runs.fuzz.release_search import FuzzRequest
from harness.runs.fuzz.worker import find_function_lines
from harness.workers.line_tracer import LineTracer, map_original_lines, select_listed_files
from reports.fuzz import terminal

HERE = Path(__file__)


def make_error(number: int) -> BaseException:
    try:
        if number > 100:
            raise ValueError(f"{number} is too much")
        assert number < 0, f"{number} is too little"
    except (ValueError, AssertionError) as error:
        return error
    raise RuntimeError


def find_key(error: BaseException) -> str:
    return failure_identity.failure_from_error(error, HERE).key


def test_failures_are_told_apart_by_type_and_place_and_not_by_numbers() -> None:
    assert (
        find_key(make_error(101))
        == find_key(make_error(5000))
        != find_key(make_error(1))
        == find_key(make_error(2))
    )


def test_the_place_is_the_innermost_that_is_a_suites_or_sglangs() -> None:
    with pytest.raises(ValueError, match="Expecting") as raised:
        json.loads("{")
    found = failure_identity.failure_from_error(raised.value, HERE)
    assert found.error == "JSONDecodeError"
    assert found.where.endswith('json.loads("{")')
    assert found.where.startswith(f"{HERE.name}:")


def test_a_report_is_told_apart_by_its_kernel_and_line() -> None:
    class FoundOverrun(AssertionError):
        place = SimpleNamespace(
            kernel="k",
            file="/x/sglang/srt/a.py",
            line=7,
            text="  tl.store(p, v)",
            program=(0, 0, 0),
        )

    found = failure_identity.failure_from_error(FoundOverrun("k wrote x[17]\n  more"), HERE)
    assert found.key == "FoundOverrun | sglang/srt/a.py: tl.store(p, v) | k"
    assert found.headline == "k wrote x[17]"


def test_code_that_a_toggle_changed_is_sglangs() -> None:
    scope: dict[str, Any] = {}
    text = "def f():\n    raise KeyError(1)\n"
    exec(compile(text, "<unfix revert 1 sglang.srt.a>", "exec"), scope)
    with pytest.raises(KeyError) as raised:
        scope["f"]()
    assert failure_identity.failure_from_error(raised.value, HERE).where.startswith(
        "sglang/srt/a.py:f:"
    )


# Lines


def test_lines_are_those_of_the_files_that_are_asked_for() -> None:
    tracer = LineTracer(select_listed_files([str(HERE)]))
    with tracer.trace():
        make_error(101)
    text = HERE.read_text().splitlines()
    ran = {text[line - 1].strip() for line in tracer.lines[HERE]}
    assert 'raise ValueError(f"{number} is too much")' in ran
    assert "raise RuntimeError" not in ran
    assert list(tracer.lines) == [HERE]


def test_lines_of_changed_code_count_as_those_they_stand_for(tmp_path: Path) -> None:
    file = tmp_path / "sglang" / "srt" / "a.py"
    file.parent.mkdir(parents=True)
    file.write_text("def f():\n    x = 1\n    y = 2\n    return x\n")
    name = "<unfix revert 1 sglang.srt.a>"
    text = "def f():\n    x = 1\n    x = 3\n    x = 4\n    y = 2\n    return x\n"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    scope: dict[str, Any] = {}
    exec(compile(text, name, "exec"), scope)
    tracer = LineTracer(select_listed_files([str(file)]))
    with tracer.trace():
        scope["f"]()
    assert tracer.lines == {file: {2, 3, 4}}
    assert map_original_lines(file.read_text(), name)[6] == 4


def test_only_lines_that_calls_run_are_there_to_be_covered() -> None:
    text = 'X = 1\nclass A:\n    y = 2\n    def f(self):\n        """Said."""\n        return 3\n'
    assert find_function_lines(compile(text, "x", "exec")) == {6}


# Reports


def a_repro(name: str = "x", error: str = "AssertionError", shrunk: bool = True) -> FailureRecord:
    found = FoundFailure(
        error, "suites/k/test_k.py:test_x: assert", "", "no [1]", ["a=1"], "AAE=", 3, shrunk
    )
    return make_record(found, test=f"suites/k/test_k.py::test_{name}")


def a_run() -> FuzzResult:
    kept = RunFailure("1.0-x", "x.json", "./unfix fuzz --replay x.json", a_repro(shrunk=False))
    tests = [
        FuzzTestResult("suites/k/test_k.py::test_x", "1.0", 100, 2.0, 1, {"fullness": 0.75}),
        FuzzTestResult("suites/k/test_k.py::test_y", "1.0", 300, 2.0, 1),
        FuzzTestResult("suites/k/test_k.py::test_z", "1.0", left_out="it draws no examples"),
    ]
    coverage = [FileCoverage("1.0", "sglang/a.py", 3, 4, 10, 200)]
    return FuzzResult(7, 60.0, [], 20.0, "finished", tests, coverage, [kept])


SUMMARY = (
    "20 of 60 s: 400 examples, 20/s; 2 of 2 tests; lines run: 3/4 of the toggled code, 10/200 "
    "of its files; 1 failures"
)


def test_the_report_of_a_run_has_all_its_results(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.print_run(a_run(), options.make_console())
    shown = capsys.readouterr().out
    for words in (
        "fullness 0.75",
        "3/4",
        "10/200",
        "left out: suites/k/test_k.py::test_z on 1.0: it draws no examples",
        "failed: 1.0-x (not shrunk)",
        "no [1]",
        "a=1",
        "./unfix fuzz --replay x.json",
        "seed 7",
    ):
        assert words in shown


def test_the_table_has_what_failed_first_and_says_how_much_it_leaves_out() -> None:
    console = Console(width=120)
    with console.capture() as captured:
        console.print(terminal.make_test_table(a_run(), max_rows=1))
    rows = captured.get().splitlines()
    assert rows[1].startswith("x ")
    assert rows[2].startswith("and 1 more")


@pytest.fixture
def request_of_a_run(tmp_path: Path) -> FuzzRequest:
    return FuzzRequest([], [], tmp_path, [], 60.0, 1, 0, 1, 1.0)


def test_a_log_has_a_line_now_and_then(
    request_of_a_run: FuzzRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    with FuzzProgress(request_of_a_run) as progress:
        progress.report_progress(a_run())
        assert capsys.readouterr().err == ""
        progress.last_logged -= progress_display.LOG_INTERVAL + 1
        progress.report_progress(a_run())
    assert capsys.readouterr().err == f"unfix: {SUMMARY}\n"


def test_a_terminal_has_a_table(
    request_of_a_run: FuzzRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    console = Console(stderr=True, force_terminal=True, width=120, highlight=False)
    monkeypatch.setattr(progress_display, "Console", lambda **_: console)
    with FuzzProgress(request_of_a_run) as progress:
        progress.report_progress(a_run())
        progress.report_failure(a_run().failures[0])
    shown = capsys.readouterr().err
    assert "nearest to an edge" in shown
    assert "fullness 0.75" in shown
    assert "unfix: failed: suites/k/test_k.py::test_x on SGLang 1.0" in shown


def test_a_name_says_what_failed_and_is_one_for_each_failure() -> None:
    names = {
        failure_files.name_failure(each, key)
        for each, key in ((a_repro(), "a"), (a_repro(), "b"), (a_repro("y"), "a"))
    }
    assert len(names) == 3
    assert all(name.startswith("1.0-") and "AssertionError" in name for name in names)
    assert failure_files.name_failure(a_repro(), "a") == failure_files.name_failure(
        a_repro(shrunk=False), "a"
    )


def test_every_regression_of_the_suites_has_its_test() -> None:
    for file in sorted((paths.project_folder() / "suites").glob("*/regressions/*.json")):
        assert (
            failure_files.locate_test_file(failure_files.read_failure(file)).parent
            == file.parents[1]
        )
