"""`unfix test`: every test is in one part, parts run concurrently, one line has the totals."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fixture_types import Output, Patch

from harness.cli.test import command, execution, partition
from harness.cli.test.partition import PytestPart
from harness.core import paths
from harness.core.errors import UnfixError
from harness.releases import managed_releases

TESTS = paths.project_folder() / "tests"
GREEN = "def test_one(): pass\ndef test_two(): pass\n"
SKIPPED = "import pytest\n@pytest.mark.skip(reason='n/a: no such thing')\ndef test_here(): pass\n"
NONE = "def nothing(): pass\n"
RED = "def test_red(): assert 'left' == 'right'\n"
DEAD = "import os, signal\ndef test_dead(): os.kill(os.getpid(), signal.SIGKILL)\n"

Runs = Callable[..., int]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: Patch) -> Runs:
    """Run all parts of a project, with one part per text."""

    # Plugins load slowly, and these tests need none.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run_texts(*texts: str, words: tuple[str, ...] = ()) -> int:
        parts = []
        for number, text in enumerate(texts):
            file = tmp_path / f"test_{number}.py"
            file.write_text(text)
            parts.append(PytestPart(f"part-{number}", sys.executable, (str(file),)))
        monkeypatch.setattr(partition, "list_parts", lambda tests, releases: parts)
        return command.run_all_parts([], list(words), paths.project_folder())

    return run_texts


def test_every_test_file_is_of_one_part() -> None:
    releases = [managed_releases.get_release(name) for name in command.INSTALLED_RELEASES]
    planned = partition.list_parts(TESTS, releases)
    words = [word for part in planned for word in part.arguments if word.startswith("tests")]
    once = list(dict.fromkeys(words))
    assert sorted(words) == sorted([*once, *["tests/releases"] * (len(releases) - 1)])
    for file in TESTS.rglob("test_*.py"):
        name = str(file.relative_to(paths.project_folder()))
        if name.startswith("tests/toy/"):
            continue
        assert [w for w in once if name == w or name.startswith(f"{w}/")], f"no part runs {name}"
    pythons = {part.python for part in planned if "suites" in part.arguments}
    assert pythons == {str(release.python) for release in releases}


def test_the_last_line_has_all_totals(runs: Runs, capfd: Output) -> None:
    assert runs(GREEN, SKIPPED, GREEN) == 0
    output = capfd.readouterr()
    assert output.out.splitlines()[-1].startswith("=== 4 passed, 1 skipped in ")
    assert output.out.splitlines()[-1].endswith("s ===")
    assert "1 not run: n/a: no such thing" in output.out
    assert "test_1.py" in output.out.split("no such thing\n")[1]
    for number in (1, 2, 3):
        assert f"unfix: part {number} of 3: part-{number - 1}\n" in output.err
    assert "unfix: part 1 of 3: part-0: 2 passed in " in output.err


def test_a_red_part_is_printed_in_full(runs: Runs, capfd: Output) -> None:
    assert runs(RED, GREEN) == 1
    output = capfd.readouterr().out
    assert "AssertionError: assert 'left' == 'right'" in output
    assert output.splitlines()[-1].startswith("=== 1 failed, 2 passed in ")
    assert "RED part-0 (exit code 1), again: " in output


def test_a_run_leaves_the_earlier_processes_of_its_caller(runs: Runs) -> None:
    """The preloaded `unfix` of these tests is one: the next test that calls it needs it."""
    with subprocess.Popen(["sleep", "600"]) as earlier:
        assert runs(GREEN) == 0
        still_runs = earlier.poll() is None
        earlier.kill()
    assert still_runs


def test_a_killed_part_is_named(runs: Runs, capfd: Output) -> None:
    assert runs(GREEN, DEAD) == 1
    assert "RED part-1 (exit code -9)" in capfd.readouterr().out


def test_a_part_without_tests_is_red_unless_deselected(runs: Runs, capfd: Output) -> None:
    assert runs(NONE, GREEN) == 1
    assert "RED part-0 (exit code 5)" in capfd.readouterr().out
    assert runs(RED, GREEN, words=("-k", "test_one")) == 0
    assert runs(RED, GREEN, words=("-k", "nobody")) == 1
    assert capfd.readouterr().out.splitlines()[-1].startswith("=== no tests ran in ")


def test_wrong_arguments_are_reported_once(runs: Runs, capfd: Output) -> None:
    with pytest.raises(UnfixError, match="unrecognized arguments: --no-such-option"):
        runs(GREEN, GREEN, words=("--no-such-option",))
    assert "usage" not in "".join(capfd.readouterr())


TOGETHER = """
import os, pathlib, time
def test_it():
    here = pathlib.Path({folder!r}, str(os.getpid()))
    here.touch()
    counts = pathlib.Path({folder!r} + ".counts")
    while len(list(here.parent.iterdir())) < 2 and not counts.exists():
        time.sleep(0.02)
    time.sleep(0.5)  # a third one would come as well
    most = len(list(here.parent.iterdir()))
    counts.open("a").write(f"{{most}}\\n")
    here.unlink()
"""


def test_the_requested_number_of_parts_runs_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "going"
    folder.mkdir()
    parts = []
    for number in range(3):
        file = tmp_path / f"test_{number}.py"
        file.write_text(TOGETHER.format(folder=str(folder)))
        parts.append(PytestPart(str(number), sys.executable, (str(file),)))
    started: list[PytestPart] = []
    results = list(execution.run_parts(parts, [], paths.project_folder(), 2, started.append))
    assert [result.exit_code for result in results] == [0] * 3
    # Of two parts that start at once, either may be the first.
    assert all(abs(started.index(part) - place) <= 1 for place, part in enumerate(parts))
    counts = [int(line) for line in (tmp_path / "going.counts").read_text().split()]
    assert (len(counts), max(counts)) == (3, 2)


def test_parts_may_write_bytecode_files(monkeypatch: Patch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    given = execution.make_environment(paths.project_folder())
    assert "PYTHONDONTWRITEBYTECODE" not in given
    assert os.environ["PYTHONDONTWRITEBYTECODE"] == "1"
