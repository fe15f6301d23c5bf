"""Wrong calls: each ends with exit code 2 or 3 and suggests a call that works."""

from __future__ import annotations

from pathlib import Path

import pytest
from nights import Nights, make_record

from harness.cli import options
from harness.cli.main import main
from harness.core.errors import NotReadyError, UnfixError
from harness.runs.fuzz import failure_files
from harness.store.fuzz.values import FoundFailure

PASSING = """
@given(number=st.integers(0, 10**9))
def test_passes(number):
    pass
"""


def read_refusal(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Return the exit code of a call, and its only line."""
    code = main(["fuzz", *words])
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("unfix: ")
    assert output.err.count("\n") == 1
    return code, output.err


BUDGETS = ("0", "0s", "-5m", "soon", "5 fortnights", "nan", "m")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["kv_indexes"], "no suite matches 'kv_indexes': did you mean kv_indices?"),
        (["--release", "0.1"], "'0.1' is no managed release"),
        (["--replay", "x", "--keep", "x"], "give one of them"),
        (["--", "-k", "x"], "takes nothing behind `--`"),
        (["--release", "current", "-j", "0"], "-j is a positive number, and not 0"),
        (["--release", "current", "--limit", "0"], "--limit is a positive number, and not 0"),
        (["--release", "current", "--memory", "-1"], "--memory is a positive number, and not -1"),
        *(
            ([f"--for={budget}"], f"--for '{budget}' is no budget: say 45s, 30m, 8h or 1h30m")
            for budget in BUDGETS
        ),
    ],
)
def test_a_wrong_call_is_refused_in_one_line(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, line = read_refusal(words, capsys)
    assert code == 2
    assert says in line


@pytest.mark.parametrize(
    ("words", "seconds"), [("45s", 45), ("45", 45), ("30m", 1800), ("8h", 28800), ("1h30m", 5400)]
)
def test_a_budget_is_read_as_people_write_it(words: str, seconds: float) -> None:
    assert options.parse_budget(words, "--for") == seconds


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--revert", "nothing-of-the-kind"], "nothing-of-the-kind"),
        (["--enable", "toy-plain"], "toy-plain is fixed on SGLang 1.0.0: --enable takes one that"),
        (
            ["--revert", "toy-heuristic", "--for", "5s"],
            "toy-heuristic cannot be put into a living process",
        ),
    ],
)
def test_toggles_that_cannot_be_put_in_are_refused(
    words: list[str], says: str, nights: Nights
) -> None:
    nights.write(PASSING)
    done = nights.run(*words)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_without_a_test_is_refused(nights: Nights) -> None:
    done = nights.run("--for", "5s")
    assert done.returncode == 2
    assert "pytest ended with NO_TESTS_COLLECTED" in done.stderr or "no test" in done.stderr


def test_a_folder_that_examples_cannot_be_kept_in_is_told_before_anything_runs(
    nights: Nights,
) -> None:
    nights.write(PASSING)
    (nights.root / ".unfix").mkdir()
    (nights.root / ".unfix" / "fuzz").write_text("a file in the way")
    done = nights.run("--for", "5s")
    assert done.returncode == 3
    assert "examples cannot be kept in" in done.stderr
    assert "set UNFIX_HOME to a folder on another disk" in done.stderr


def test_a_night_on_a_disk_that_fills_up_ends_with_words(nights: Nights) -> None:
    nights.write(
        PASSING.replace("pass\n", "maximize_target('x', number); os.replace = full\n")
        + """
def full(*arguments):
    if str(arguments[1]).count("examples"):
        raise OSError(28, "No space left on device")
    os.rename(*arguments)
"""
    )
    done = nights.run("--for", "8s", "-j", "1")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "examples cannot be kept in" in done.stderr
    assert "No space left on device; make room there" in done.stderr


def test_a_failure_that_cannot_be_written_is_told_with_its_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNFIX_HOME", str(tmp_path))
    (tmp_path / ".unfix").write_text("a file in the way")
    found = FoundFailure("ValueError", "here", "", "no", ["x=1"], "AAE=")
    record = make_record(found, "a.py::test_x")
    with pytest.raises(NotReadyError, match=r"its example of a\.py::test_x is AAE="):
        failure_files.write_failure(record, found.key, [])


def test_a_failure_without_an_example_cannot_be_kept(nights: Nights) -> None:
    nights.write(PASSING)
    found = FoundFailure("lost", "", "", "", [], "")
    test = f"{nights.suite}/test_toy.py::test_passes"
    file = nights.root / "a.json"
    file.write_text(make_record(found, test).format_file())
    with pytest.raises(UnfixError, match="holds no example"):
        failure_files.keep_regression(file)
