"""Which failures are one, which lines ran, and what is shown of a run."""

from __future__ import annotations

import json
import linecache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from harness import paths
from harness.cli import options, watching
from harness.cli.fuzz import progress as going
from harness.fuzz import failures, telling_apart
from harness.fuzz.code_lines import function_lines
from harness.fuzz.lanes import Asked
from harness.fuzz.tracing import ALL_OF, EVERY, Tracer, module_of, original_lines
from harness.fuzz.values import Covered, Found, Fuzzed, Kept, Repro, Tally
from reports.fuzz import terminal

HERE = Path(__file__)


def raised(number: int) -> BaseException:
    try:
        if number > 100:
            raise ValueError(f"{number} is too much")
        assert number < 0, f"{number} is too little"
    except (ValueError, AssertionError) as error:
        return error
    raise RuntimeError


def key(error: BaseException) -> str:
    return telling_apart.told(error, HERE).key


def test_failures_with_other_numbers_are_one() -> None:
    assert key(raised(101)) == key(raised(5000))
    assert key(raised(1)) == key(raised(2))


def test_failures_of_another_kind_or_place_are_two() -> None:
    assert key(raised(101)) != key(raised(1))


def test_the_place_is_the_innermost_that_is_a_suites_or_sglangs() -> None:
    with pytest.raises(ValueError, match="Expecting") as raised:
        json.loads("{")
    found = telling_apart.told(raised.value, HERE)
    assert found.error == "JSONDecodeError"
    assert found.where.endswith('json.loads("{")')
    assert found.where.startswith("test_telling.py:")


def test_a_report_is_told_apart_by_its_kernel_and_line() -> None:
    class OutOfBounds(AssertionError):
        place = SimpleNamespace(
            kernel="k",
            file="/x/sglang/srt/a.py",
            line=7,
            text="  tl.store(p, v)",
            program=(0, 0, 0),
        )

    found = telling_apart.told(OutOfBounds("k wrote x[17]\n  more"), HERE)
    assert found.key == "OutOfBounds | sglang/srt/a.py: tl.store(p, v) | k"
    assert found.headline == "k wrote x[17]"


def test_code_that_a_toggle_changed_is_sglangs() -> None:
    scope: dict[str, Any] = {}
    text = "def f():\n    raise KeyError(1)\n"
    exec(compile(text, "<unfix revert 1 sglang.srt.a>", "exec"), scope)
    with pytest.raises(KeyError) as raised:
        scope["f"]()
    assert telling_apart.told(raised.value, HERE).where.startswith("sglang/srt/a.py:f:")


# Lines


def test_lines_are_those_of_the_files_that_are_asked_for() -> None:
    tracer = Tracer([str(HERE)])
    with tracer.example():
        raised(101)
    text = HERE.read_text().splitlines()
    ran = {text[line - 1].strip() for line in tracer.covered[str(HERE)]}
    assert 'raise ValueError(f"{number} is too much")' in ran
    assert "raise RuntimeError" not in ran
    assert list(tracer.covered) == [str(HERE)]


@pytest.mark.parametrize("before", [0, ALL_OF - 5, ALL_OF])
def test_after_some_examples_of_a_test_one_of_a_few_is_traced(before: int) -> None:
    tracer = Tracer([str(HERE)], before)
    traced = 0
    for _ in range(ALL_OF - before + 10 * EVERY):
        tracer.covered[str(HERE)].clear()
        with tracer.example():
            raised(1)
        traced += bool(tracer.covered[str(HERE)])
    assert traced == ALL_OF - before + 10


def test_lines_of_changed_code_count_as_those_they_stand_for(tmp_path: Path) -> None:
    file = tmp_path / "sglang" / "srt" / "a.py"
    file.parent.mkdir(parents=True)
    file.write_text("def f():\n    x = 1\n    y = 2\n    return x\n")
    name = "<unfix revert 1 sglang.srt.a>"
    text = "def f():\n    x = 1\n    x = 3\n    x = 4\n    y = 2\n    return x\n"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    scope: dict[str, Any] = {}
    exec(compile(text, name, "exec"), scope)
    tracer = Tracer([str(file)])
    with tracer.example():
        scope["f"]()
    assert tracer.covered[str(file)] >= {2, 3, 4}
    assert tracer.covered[str(file)] <= {2, 3, 4}
    assert original_lines(file.read_text(), name)[6] == 4


def test_changed_code_says_its_module() -> None:
    assert module_of("<unfix revert 27338 sglang.srt.layers.a>") == "sglang.srt.layers.a"
    assert module_of("/x/sglang/srt/layers/a.py") is None


def test_only_lines_that_calls_run_are_there_to_be_covered() -> None:
    text = 'X = 1\nclass A:\n    y = 2\n    def f(self):\n        """Said."""\n        return 3\n'
    assert function_lines(compile(text, "x", "exec")) == {6}


# Telling


def a_repro(name: str = "x", error: str = "AssertionError", shrunk: bool = True) -> Repro:
    found = Found(
        error, "suites/k/test_k.py:test_x: assert", "", "no [1]", ["a=1"], "AAE=", 3, shrunk
    )
    return failures.repro(found, f"suites/k/test_k.py::test_{name}", "1.0", [], {}, 0, "")


def a_run() -> Fuzzed:
    kept = Kept("1.0-x", "x.json", "./unfix fuzz --replay x.json", a_repro(shrunk=False))
    tests = [
        Tally("suites/k/test_k.py::test_x", "1.0", 100, 2.0, 1, {"fullness": 0.75}),
        Tally("suites/k/test_k.py::test_y", "1.0", 300, 2.0, 1),
        Tally("suites/k/test_k.py::test_z", "1.0", left_out="it draws no examples"),
    ]
    coverage = [Covered("1.0", "sglang/a.py", 3, 4, 10, 200)]
    return Fuzzed(7, 60.0, [], 20.0, "finished", tests, coverage, [kept])


def test_a_run_in_one_line() -> None:
    assert terminal.line(a_run()) == (
        "20 of 60 s: 400 examples, 20/s; 2 of 2 tests; lines run: 3/4 of the toggled code, 10/200 "
        "of its files; 1 failures"
    )


def test_a_run_is_shown_with_all_that_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.show(a_run(), options.console())
    told = capsys.readouterr().out
    for words in (
        "fullness 0.75",
        "3/4",
        "10/200",
        "left out: suites/k/test_k.py::test_z on 1.0: it draws no examples",
        "failed: 1.0-x (as it was found, not shrunk)",
        "no [1]",
        "a=1",
        "./unfix fuzz --replay x.json",
        "seed 7",
    ):
        assert words in told


def test_the_table_has_what_failed_first_and_says_how_much_it_leaves_out() -> None:
    console = Console(width=120)
    with console.capture() as captured:
        console.print(terminal.table(a_run(), rows=1))
    told = captured.get().splitlines()
    assert told[1].startswith("x ")
    assert told[2].startswith("and 1 more")


def asked(tmp_path: Path) -> Asked:
    return Asked([], [], tmp_path, [], 60.0, 1, 0, 1, 1.0)


def test_a_log_has_a_line_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with going.Progress(asked(tmp_path)) as progress:
        progress.moved(a_run())
        assert capsys.readouterr().err == ""
        progress.told -= watching.EVERY + 1
        progress.moved(a_run())
    assert capsys.readouterr().err == f"unfix: {terminal.line(a_run())}\n"


def test_a_terminal_has_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    console = Console(stderr=True, force_terminal=True, width=120, highlight=False)
    monkeypatch.setattr(watching, "Console", lambda **_: console)
    with going.Progress(asked(tmp_path)) as progress:
        progress.moved(a_run())
        progress.failed(a_run().failures[0])
    told = capsys.readouterr().err
    assert "nearest to an edge" in told
    assert "fullness 0.75" in told
    assert "unfix: failed: suites/k/test_k.py::test_x on SGLang 1.0" in told


def test_a_name_says_what_failed_and_is_one_for_each_failure() -> None:
    names = {
        failures.name_of(each, key)
        for each, key in ((a_repro(), "a"), (a_repro(), "b"), (a_repro("y"), "a"))
    }
    assert len(names) == 3
    assert all(name.startswith("1.0-") and "AssertionError" in name for name in names)
    assert failures.name_of(a_repro(), "a") == failures.name_of(a_repro(shrunk=False), "a")


def test_every_regression_of_the_suites_has_its_test() -> None:
    for file in sorted((paths.project() / "suites").glob("*/regressions/*.json")):
        assert failures.file_of(failures.read(file)).parent == file.parents[1]
