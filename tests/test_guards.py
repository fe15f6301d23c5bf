"""Guards as pytest runs them: both sides of a toggle, profiles, seeds, replays, and refusals."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import forked
import pytest
from calling import run_program
from fixture_types import Patch

from harness.core import paths
from harness.guards import verdicts

ROOT = paths.project_folder()
TOY = Path(__file__).parent / "toy"

HEAD = """
import pytest
from hypothesis import given, strategies as st
from sglang import forms
from harness.guards import skip_not_applicable
"""

PLAIN = """
@pytest.mark.guards("toy-plain")
@given(rows=st.integers(0, 99), topk=st.integers(0, 99))
def test_plain(rows, topk):
    assert forms.plain(rows, topk) == rows * topk * 2
"""


class Suites:
    """A folder of suites beside the toy, run in a process of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "suites").mkdir()
        (root / "conftest.py").write_text('pytest_plugins = ("harness.guards.plugin",)\n')
        (root / "pytest.ini").write_text("[pytest]\nmarkers =\n    guards: toggles\n")
        own = (ROOT / "suites" / "conftest.py").read_text()
        (root / "suites" / "conftest.py").write_text(own)

    def run(self, text: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        (self.root / "suites" / "test_toy.py").write_text(HEAD + text)
        search_path = os.pathsep.join((str(ROOT), str(TOY), str(self.root)))
        ours = {"UNFIX_TOGGLES": str(TOY / "toggles"), "UNFIX_HOME": str(self.root)}
        environment = {**os.environ, "PYTHONPATH": search_path, **ours, **variables}
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "suites", *words]
        return forked.run_unfix(command, self.root, environment)


@pytest.fixture
def suites(tmp_path: Path) -> Suites:
    return Suites(tmp_path)


def test_a_guard_passes_as_it_is(suites: Suites) -> None:
    done = suites.run(PLAIN, "-v")
    assert done.returncode == 0
    assert "unfix: device cpu, profile default, seed 0" in done.stdout


def test_with_teeth_a_guard_is_one_test_and_its_counterexample_is_shown(suites: Suites) -> None:
    done = suites.run(PLAIN, "--teeth", "-v")
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("PASSED") == 1
    assert "test_plain[toy-plain] PASSED" in done.stdout
    assert "caught suites/test_toy.py::test_plain[toy-plain] (its code ran" in done.stdout
    assert re.search(r"rows=1,\s+topk=0", done.stdout)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("== rows * topk * 2", ">= 0", ("toy-plain is toothless: it passes with the fix reverted",
                            "1 failed")),
        ("forms.plain(rows, topk)", "rows * topk * 2",
         ("toy-plain is unreached: the toggled code never ran",)),
    ],
)  # fmt: skip
def test_a_toothless_or_unreached_guard_is_red(
    suites: Suites, old: str, new: str, says: tuple[str, ...]
) -> None:
    done = suites.run(PLAIN.replace(old, new), "--teeth")
    assert done.returncode == 1
    assert all(words in done.stdout for words in says)


def test_a_failure_prints_the_line_that_replays_it(suites: Suites) -> None:
    wrong = PLAIN.replace("topk * 2", "topk * 3")
    done = suites.run(wrong)
    line = next(line for line in done.stdout.splitlines() if line.startswith("./unfix exec"))
    words = shlex.split(line)
    toggles = ["--toggles", str(TOY / "toggles")]
    assert words[:7] == ["./unfix", "exec", "--release", "1.0.0", *toggles, "--"], line
    assert "this release lacks the fix" not in done.stdout
    words = words[next(i for i, word in enumerate(words) if "::" in word) + 1 :]
    again = suites.run(wrong, *words, "-v")
    assert "1 failed" in again.stdout
    mended = suites.run(PLAIN, *words)
    assert mended.returncode == 0, mended.stdout
    # The example of a test that now draws more is not replayed.
    drawn = PLAIN.replace("@given(", "@given(more=st.integers(), ")
    otherwise = suites.run(drawn.replace("(rows, topk):", "(rows, topk, more):"), *words)
    assert otherwise.returncode == 1, otherwise.stdout
    assert "DidNotReproduce" in otherwise.stdout


COLLECTS_TEST_CASES = """
from harness.guards import unittest_guards

def pytest_pycollect_makeitem(collector, name, obj):
    return unittest_guards.make_guard_class(collector, name, obj, "toy-plain", "KeyError".__eq__)
"""
TEST_CASE = """
import unittest

class TestPlain(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.rows = 3

    def test_product(self):
        self.assertEqual(forms.plain(self.rows, 5), 30)

    def test_that_holds_on_both_sides(self):
        self.assertEqual(forms.plain(0, 5), 0)
"""


@pytest.mark.parametrize(
    ("assertion", "says"),
    [
        (
            "self.assertEqual(forms.plain(self.rows, 5), 30)",
            "TestPlain::test_case[toy-plain] (its",
        ),
        ("self.assertTrue(forms.plain(self.rows, 5))", "toy-plain is toothless"),
        ("{30: 0}[forms.plain(self.rows, 5)]", "caught"),
        ("(forms.plain(self.rows, 5) - 30) and [][1]", "IndexError"),
        ("self.skipTest('not here')", "it skips itself: not here"),
    ],
)
def test_a_test_case_of_unittest_is_a_guard_on_both_sides(
    suites: Suites, assertion: str, says: str
) -> None:
    """An error that is no assertion proves nothing, unless the finding names it: KeyError here."""
    conftest = suites.root / "suites" / "conftest.py"
    conftest.write_text(conftest.read_text() + COLLECTS_TEST_CASES)
    text = TEST_CASE.replace("self.assertEqual(forms.plain(self.rows, 5), 30)", assertion)
    done = suites.run(text, "--teeth", "-v")
    assert says in done.stdout
    is_caught = "toy-plain is" not in done.stdout
    assert ("caught suites/test_toy.py::TestPlain::test_case" in done.stdout) == is_caught
    assert (done.returncode == 0) == is_caught


def test_always_on_checks_are_taken_out_for_both_sides(suites: Suites) -> None:
    text = PLAIN.replace('"toy-plain"', '"toy-closure", without=("toy-plain",)')
    text = text.replace("== rows * topk * 2", "== rows * 2")
    text = text.replace("    assert", "    assert forms.outer(5)(100) == 105\n    assert")
    text += "\ndef test_back():\n    assert forms.plain(3, 5) == 30\n"
    assert suites.run(text, "--teeth").returncode == 0
    assert suites.run(text).returncode == 0


@pytest.mark.parametrize(
    ("marker", "says"),
    [
        ('"toy-plane"', ("toy-plane", "toy-plain")),
        ("", ("pytest.mark.guards",)),
        ('"toy-plain", unless=("toy-plain",)', ("pytest.mark.guards",)),
    ],
)
def test_a_wrong_marker_is_an_error(suites: Suites, marker: str, says: tuple[str, ...]) -> None:
    done = suites.run(PLAIN.replace('"toy-plain"', marker))
    assert done.returncode == 1
    assert all(words in done.stdout for words in says)


def test_a_guard_that_is_expected_to_fail_is_refused(suites: Suites) -> None:
    done = suites.run(PLAIN.replace("@given", "@pytest.mark.xfail\n@given"), "--teeth")
    assert done.returncode == 1
    assert "guards nothing" in done.stdout
    assert "xfailed" not in done.stdout


def test_a_guard_may_not_step_aside_on_one_side(suites: Suites) -> None:
    step = "    if forms.plain(3, 5) != 30:\n        skip_not_applicable('away')\n"
    aside = PLAIN.replace("    assert", f"{step}    assert")
    done = suites.run(aside, "--teeth")
    assert done.returncode == 1
    assert "toy-plain is broken: n/a with the fix reverted alone: away" in done.stdout


@pytest.mark.parametrize("seed", [(), ("--hypothesis-seed", "7"), ("--hypothesis-seed", "random")])
def test_a_run_in_which_nothing_applies_is_red(suites: Suites, seed: tuple[str, ...]) -> None:
    away = PLAIN.replace("    assert", "    skip_not_applicable('away')\n    assert")
    assert suites.run(away, "--teeth", *seed).returncode == 5


HOOKS = {
    "pytest_runtest_protocol": "item, nextitem):\n    return True\n",
    "pytest_collection_finish": "session):\n    pytest.exit('enough', 0)\n",
}


@pytest.mark.parametrize("hook", HOOKS)
def test_a_run_that_leaves_a_guard_out_is_red(suites: Suites, hook: str) -> None:
    with (suites.root / "suites" / "conftest.py").open("a") as conftest:
        conftest.write(f"\n@pytest.hookimpl(tryfirst=True)\ndef {hook}({HOOKS[hook]}")
    done = suites.run(PLAIN, "--teeth")
    assert done.returncode == 5
    assert "never run: suites/test_toy.py::test_plain[toy-plain]" in done.stdout
    assert suites.run(PLAIN, "--teeth", "--collect-only").returncode == 0


def test_what_is_not_here_is_counted_and_named(suites: Suites) -> None:
    text = PLAIN + '\ndef test_away():\n    skip_not_applicable("no such backend")\n'
    done = suites.run(text)
    assert "n/a here: 1 guard" in done.stdout
    assert "n/a suites/test_toy.py::test_away: no such backend" in done.stdout
    assert done.returncode == 0


def test_a_device_that_is_not_here_is_said(suites: Suites) -> None:
    done = suites.run(PLAIN, "--device", "cuda")
    assert done.returncode != 0
    assert "no CUDA device" in done.stdout + done.stderr


def test_the_same_seed_draws_the_same_examples(suites: Suites, monkeypatch: Patch) -> None:
    text = PLAIN.replace("assert", "open('seen', 'a').write(f'{rows} {topk}\\n')\n    assert")
    seen = suites.root / "seen"
    runs = []
    seven = ("--hypothesis-seed", "7")
    for words, ci in ((seven, ""), ((*seven, "-n", "1"), ""), (seven, "true"), ((), "true")):
        monkeypatch.delenv("CI", raising=False)
        if ci:  # Hypothesis has other settings there
            monkeypatch.setenv("CI", ci)
        assert suites.run(text, *words).returncode == 0
        runs.append(seen.read_text())
        seen.unlink()
    assert runs[0] == runs[1] == runs[2] != runs[3]


def test_what_happens_to_be_imported_decides_nothing(suites: Suites) -> None:
    (suites.root / "numbers_of_ours.py").write_text(f"MANY = {list(range(700, 799))}\n")
    write = "open('seen', 'a').write(f'{rows} {topk}\\n')\n    assert"
    text = PLAIN.replace("99", "9999").replace("assert", write)
    seen = suites.root / "seen"
    runs = []
    for more in ("", "import numbers_of_ours\n"):
        assert suites.run(more + text).returncode == 0
        runs.append(seen.read_text())
        seen.unlink()
    assert runs[0] == runs[1]


RARE = """
@pytest.mark.guards("toy-plain")
@given(number=st.integers(0, 49))
def test_rare(number):
    buggy = forms.plain(1, 2) != 4
    open("looked", "a").write("b" if buggy else "f")
    assert not buggy or number != 33  # all fifty are tried
"""


def test_a_bug_that_is_there_is_looked_for_longer(suites: Suites) -> None:
    done = suites.run(RARE, "--teeth", "--profile", "smoke")
    assert done.returncode == 0, done.stdout
    looked = (suites.root / "looked").read_text()
    assert looked.count("f") == 10 + verdicts.REQUIRED_PASSES, "and the example alone"
    assert looked.count("b") > 10


@pytest.mark.parametrize(("profile", "examples"), [("smoke", 10), ("default", 40)])
def test_a_profile_says_how_hard_to_look(suites: Suites, profile: str, examples: int) -> None:
    text = PLAIN.replace("assert", "open('seen', 'a').write('.')\n    assert")
    assert suites.run(text, "--profile", profile).returncode == 0
    assert len((suites.root / "seen").read_text()) == examples


def test_a_run_is_recorded(suites: Suites) -> None:
    text = PLAIN + '\ndef test_away():\n    skip_not_applicable("no such backend")\n'
    assert suites.run(text, "--teeth", "--record", "out/run.json").returncode == 0
    record = json.loads((suites.root / "out" / "run.json").read_text())
    assert record["counts"] == {"passed": 1, "failed": 0, "error": 0, "skipped": 1}
    assert {"versions", "date", "gpu"} <= set(record["machine"])
    away, plain = record["guards"]
    assert away["why"] == "n/a: no such backend"
    assert plain["guard"] == "suites/test_toy.py::test_plain[toy-plain]"
    assert plain["reach"] > 0
    assert any("rows=1" in line for line in plain["counterexample"])


@pytest.mark.parametrize(
    ("plugins", "code"), [(("conftest",), 0), (("conftest", "tests.conftest"), 1)]
)
def test_warnings_are_errors_in_our_own_tests_alone(
    tmp_path: Path, plugins: tuple[str, ...], code: int
) -> None:
    """SGLang's imports warn, and a folder of guards in a checkout has its settings of pytest."""
    file = tmp_path / "test_own.py"
    file.write_text("import warnings\n\n\ndef test_it():\n    warnings.warn('old', UserWarning)\n")
    root = paths.project_folder()
    words = ["-c", root / "pyproject.toml", "--rootdir", root, "-p", "no:cacheprovider"]
    chosen = [word for name in plugins for word in ("-p", name)]
    here = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "tests")])}
    command = [sys.executable, "-m", "pytest", *map(str, words), *chosen, str(file)]
    assert run_program(command, env=here).returncode == code
