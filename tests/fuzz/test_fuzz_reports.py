"""The identity of a failure, the lines that ran, and the report of a run."""

from __future__ import annotations

import html
import json
import linecache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nights import make_record

from harness.cli import options
from harness.core import paths
from harness.core.outcomes import RunStatus
from harness.runs.fuzz import failure_files, failure_identity
from harness.runs.fuzz.worker import find_function_lines
from harness.store.fuzz.values import (
    FailureRecord,
    FileCoverage,
    FoundFailure,
    FuzzRun,
    FuzzTestResult,
    RunFailure,
)
from harness.workers.line_tracer import LineTracer, map_original_lines, select_listed_files
from reports.fuzz import markdown, page, terminal

HERE = Path(__file__)


def make_error(number: int) -> BaseException:
    try:
        if number > 100:
            raise ValueError(f"{number} is too much")
        assert number < 0, f"{number} is too little"
    except (ValueError, AssertionError) as error:
        return error
    raise RuntimeError


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


def make_repro(name: str = "x", shrunk: bool = True) -> FailureRecord:
    found = FoundFailure(
        *("AssertionError", "suites/k/test_k.py:test_x: assert", "", "no [1]"),
        *(["a=1"], "AAE=", 3, shrunk),
    )
    return make_record(found, test=f"suites/k/test_k.py::test_{name}")


def make_run() -> FuzzRun:
    failure = RunFailure(
        "1.0-x", "x.json", "./unfix fuzz --replay x.json", make_repro(shrunk=False)
    )
    tests = [
        FuzzTestResult("suites/k/test_k.py::test_x", "1.0", 100, 2.0, 1, {"fullness": 0.75}),
        FuzzTestResult("suites/k/test_k.py::test_y", "1.0", 300, 2.0, 1),
        FuzzTestResult("suites/k/test_k.py::test_z", "1.0", left_out="it draws no examples"),
    ]
    coverage = [FileCoverage("1.0", "sglang/a.py", 3, 4, 10, 200)]
    run = FuzzRun("fuzz-1", "2026-01-01T00:00:00+00:00", 7, 60.0, seconds=32.0, search_seconds=20.0)
    run.tests, run.coverage, run.failures = tests, coverage, [failure]
    run.status = RunStatus.FINISHED
    tests[0].exhausted = tests[1].exhausted = True
    run.problems = ["a worker [2] ended"]
    return run


ANSWER = "1 failure in 2 of 2 tests"
FIGURES = (
    "400 examples in 20 of 60 s, 20/s; lines run: 3/4 of the toggled code, 10/200 of its files"
)
CONTENTS = (
    *("fullness 0.75", "3/4", "10/200", "failed: 1.0-x (not shrunk)", "no [1]", "a=1", ANSWER),
    *(FIGURES, "a worker [2] ended", "every possible example", "sglang/a.py"),
    *("left out: suites/k/test_k.py::test_z on 1.0: it draws no examples", "fuzz --replay x.json"),
)


def test_no_problem_is_left_out_of_the_page() -> None:
    run = make_run()
    run.problems = [f"a worker ended with {code}" for code in range(100, 130)]
    shown = page.render_page(run)
    assert [problem for problem in run.problems if problem not in shown] == []


def test_each_report_of_a_run_has_all_its_results(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.print_run(make_run(), options.make_console())
    shown = capsys.readouterr().out
    assert shown.splitlines()[1].startswith("x "), "the failing test comes first"
    assert f"red  seed 7; {ANSWER}; {FIGURES}\nagain: unfix report fuzz-1\n" in shown
    in_markdown = html.unescape(markdown.render_markdown(make_run()))
    in_page = html.unescape(page.render_page(make_run()))
    for report in (shown, in_markdown, in_page):
        assert [words for words in CONTENTS if words not in report] == []


def test_a_name_says_what_failed_and_is_one_for_each_failure() -> None:
    names = {
        failure_files.name_failure(each, key)
        for each, key in ((make_repro(), "a"), (make_repro(), "b"), (make_repro("y"), "a"))
    }
    assert len(names) == 3
    assert all(name.startswith("1.0-") and "AssertionError" in name for name in names)
    assert failure_files.name_failure(make_repro(), "a") == failure_files.name_failure(
        make_repro(shrunk=False), "a"
    )


def test_every_regression_of_the_suites_has_its_test() -> None:
    for file in sorted((paths.project_folder() / "suites").glob("*/regressions/*.json")):
        assert (
            failure_files.locate_test_file(failure_files.read_failure(file)).parent
            == file.parents[1]
        )
