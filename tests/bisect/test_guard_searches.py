"""A guard as the command: given by name, run in forks of one process, judged as by `prove`."""

from __future__ import annotations

from pathlib import Path

import pytest
from bisecting import Bisect
from fixture_types import Patch

from harness.core.errors import UnfixError
from harness.runs.bisect import guard_runner

HEAD = """
import os, signal, time
import pytest
from sglang import forms
from harness.guards import skip_not_applicable

pytestmark = pytest.mark.guards("toy-class-body", "toy-static")
"""
WIDE = "forms.Forms().width != 8"
STATIC = "forms.Forms.static(5) != 4"


def write_guard(bisect: Bisect, body: str, mark: str = "", argument: str = "") -> list[str]:
    file = bisect.root / "test_ours.py"
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    file.write_text(f"{HEAD}\n{mark}\ndef test_it({argument}):\n{lines}\n")
    return [f"{file}::test_it"]


def test_a_guard_is_searched_in_few_runs_of_one_process(bisect: Bisect) -> None:
    pids = bisect.root / "pids"
    body = f"open({str(pids)!r}, 'a').write(f'{{os.getppid()}}\\n')\nassert not {STATIC}"
    bisect.names = ("toy-*",)
    found = bisect.search(command=write_guard(bisect, body))
    (part,) = found["toggle_searches"]
    assert part["minimal_sets"] == [["toy-static"]]
    assert len(found["trials"]) <= 8
    assert len(pids.read_text().splitlines()) == len(found["trials"])
    assert found["is_deterministic"] is True
    # The toy's kernels need Triton, which is not in this environment.
    kernels = ("helper", "heuristic", "kernel", "scale", "tuned")
    assert set(part["refused"]) <= {f"toy-{name}" for name in kernels}
    ran = [trial for trial in found["trials"] if trial["answer"] == "fails"]
    assert all(trial["reach_by_toggle"]["toy-static"] for trial in ran)


@pytest.mark.parametrize(
    ("body", "how"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "segfault"),
        ("assert False, 'no'", "failed: no"),
        ("pytest.fail('no')", "failed: no"),
    ],
)
def test_what_counts_as_a_failure(bisect: Bisect, body: str, how: str) -> None:
    found = bisect.search(command=write_guard(bisect, f"if {WIDE}: {body}"))
    assert found["toggle_searches"][0]["minimal_sets"] == [["toy-class-body"]]
    assert any(how in trial["how"] for trial in found["trials"])


@pytest.mark.parametrize(
    ("body", "how"),
    [
        ("raise ValueError('other')", "error: ValueError"),
        ("time.sleep(600)", "hang"),
        ("pytest.skip('not today')", "skipped"),
        ("os._exit(0)", "exited"),
        ("os.kill(os.getppid(), signal.SIGKILL)", "lost"),
        # The worker itself, from which every run is forked.
        ("os.kill(int(open('/proc/' + str(os.getppid()) + '/stat').read().split()[3]), 9)", "lost"),
    ],
)
def test_what_cannot_be_told(bisect: Bisect, body: str, how: str) -> None:
    """No such run is an answer: the search skips it, and finds the other culprit."""
    command = write_guard(bisect, f"if {STATIC}: {body}\nassert not {WIDE}")
    limit = ("--limit", "5") if how == "hang" else ()
    found = bisect.search(*limit, command=command)
    assert found["toggle_searches"][0]["minimal_sets"] == [["toy-class-body"]], found["summary"]
    untold = {t["how"].partition(":")[0] for t in found["trials"] if t["answer"] == "cannot tell"}
    assert how.partition(":")[0] in untold


def test_parameters_that_do_not_apply_have_no_say(bisect: Bisect) -> None:
    mark = "@pytest.mark.parametrize('what', ['here', 'away'])"
    body = f"if what == 'away': skip_not_applicable('away')\nassert not {WIDE}"
    assert bisect.sets(command=write_guard(bisect, body, mark, "what")) == [["toy-class-body"]]


def test_a_guard_that_fails_or_cannot_be_collected_is_refused(bisect: Bisect) -> None:
    command = write_guard(bisect, "assert False, 'always'")
    done = bisect.run(command=command)
    assert done.returncode == 2
    assert "fails already" in done.stderr
    assert "always" in done.stderr
    (bisect.root / "test_ours.py").write_text("import nothing_of_that_name\n")
    done = bisect.run(command=command)
    assert done.returncode in (2, 3)
    assert "nothing_of_that_name" in done.stderr


def test_a_name_is_a_guard_of_ours_or_a_command() -> None:
    name = "test_a_row_has_room_for_two_drafts_beyond_the_context"
    found = guard_runner.find_guard_node([name])
    assert found is not None
    assert found.endswith(f"suites/pool_sizing/test_pool_sizing.py::{name}")
    assert guard_runner.find_guard_node([f"{name}[x]"]) == f"{found}[x]"
    node = "suites/pool_sizing/test_pool_sizing.py::test_x"
    assert guard_runner.find_guard_node([node]) is not None
    assert guard_runner.find_guard_node(["python"]) is None
    with pytest.raises(UnfixError, match=f"near it: {name}"):
        guard_runner.find_guard_node([name.replace("drafts", "draft")])
    assert guard_runner.find_guard_node(["python", "-m", "pytest"]) is None
    with pytest.raises(UnfixError, match="no file"):
        guard_runner.find_guard_node(["nosuch.py::test_x"])


def test_a_name_that_several_guards_have_is_refused(tmp_path: Path, monkeypatch: Patch) -> None:
    for folder in ("one", "two"):
        (tmp_path / "suites" / folder).mkdir(parents=True)
        (tmp_path / "suites" / folder / "test_a.py").write_text("def test_same(): ...\n")
    monkeypatch.setattr("harness.core.paths.project_folder", lambda: tmp_path)
    with pytest.raises(UnfixError, match="2 guards are called test_same"):
        guard_runner.find_guard_node(["test_same"])


@pytest.mark.parametrize(
    "text",
    [
        "class TestIt(unittest.TestCase):\n    def test_it(self): self.assertEqual(WIDTH(), 8)",
        "class TestIt:\n    def setup_method(self): self.width = WIDTH()\n"
        "    def test_it(self): assert self.width == 8",
    ],
)
def test_toggles_hold_in_whatever_way_a_guard_is_written(bisect: Bisect, text: str) -> None:
    file = bisect.root / "test_ours.py"
    file.write_text(f"import unittest\n{HEAD}\nWIDTH = lambda: forms.Forms().width\n{text}\n")
    found = bisect.search(command=[f"{file}::TestIt::test_it"])
    assert found["toggle_searches"][0]["minimal_sets"] == [["toy-class-body"]], found["summary"]
