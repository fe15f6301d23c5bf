"""Ways in which a run could be green without a proof, each tried."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from calling import TOY, wait_until
from proving import Prove

from harness.core import paths

GOOD = "@guards('toy-plain')\ndef test_good():\n    assert not buggy()\n"


def run_prove(prove: Prove, *words: str, **options: Any) -> tuple[int, dict[str, Any]]:
    done = prove.run("--json", *words, **options)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, found


def read_verdicts(found: dict[str, Any]) -> dict[str, str]:
    return {cell["guard"].partition("::")[2]: cell["verdict"] for cell in found["cells"]}


FILES = {
    "test_unittest.py": "import unittest\n@guards('toy-plain')\nclass TestIt(unittest.TestCase):\n"
    "    def test_of_unittest(self):\n        pass\n",
    "test_init.py": "@guards('toy-plain')\nclass TestIt:\n    def __init__(self):\n        pass\n"
    "    def test_of_init(self):\n        pass\n",
    "test_skips.py": "pytest.importorskip('no_such_module')\n" + GOOD,
    "test_two.py": "@guards('toy-default')\nclass TestIt:\n"
    "    @guards('toy-plain', 'toy-plain', 'toy-pl*')\n"
    "    def test_two(self):\n        forms.with_default(1)\n        assert not buggy()\n",
    "test_good.py": GOOD,
}


def test_guards_that_cannot_run_are_problems_and_the_others_are_judged(
    prove: Prove, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller's PYTEST_ADDOPTS deselects none, and every marker of a guard counts."""
    monkeypatch.setenv("PYTEST_ADDOPTS", "-k good")
    for name, text in FILES.items():
        prove.write(text, name)
    code, found = run_prove(prove)
    assert code == 1
    reasons = "\n".join([*found["problems"], *(cell["why"] for cell in found["cells"])])
    for reason in ("cannot be run on both sides", "__init__", "skips itself as a whole"):
        assert reason in reasons
    cells = {
        (cell["guard"].rpartition("::")[2], cell["toggle"]): cell["verdict"]
        for cell in found["cells"]
    }
    assert cells["test_good", "toy-plain"] == "proven"
    assert cells["test_two", "toy-plain"] == "proven"
    assert cells["test_two", "toy-default"] == "toothless"


SELECTIONS = {
    "conftest.py": (
        "def pytest_collection_modifyitems(items):\n"
        "    items[:] = [item for item in items if 'good' in item.name]\n"
    ),
    "pytest.ini": "[pytest]\naddopts = -k good\n",
}
BAD = "@guards('toy-plain')\ndef test_bad():\n    buggy()\n"


@pytest.mark.parametrize("file", SELECTIONS)
def test_a_guard_that_the_suite_itself_leaves_out_is_a_problem(prove: Prove, file: str) -> None:
    prove.write(GOOD + BAD)
    (prove.guards / file).write_text(SELECTIONS[file])
    code, found = run_prove(prove)
    assert code == 1
    assert read_verdicts(found) == {"test_good": "proven"}
    assert any("leave out 1 guard: test_toy.py::test_bad" in each for each in found["problems"])


def test_a_guard_that_the_call_leaves_out_is_no_problem(prove: Prove) -> None:
    prove.write(GOOD + BAD)
    (prove.guards / "pytest.ini").write_text(SELECTIONS["pytest.ini"])
    code, found = run_prove(prove, "-k", "good")
    assert (code, found["problems"]) == (0, [])


def test_a_longer_search_that_finds_another_failure_proves_nothing(prove: Prove) -> None:
    prove.write(
        "@guards('toy-plain')\n@given(n=st.integers(0, 380))\ndef test_it(n):\n"
        "    forms.plain(1, 2)\n    assert n != 307\n"
    )
    code, found = run_prove(prove)
    assert code == 1
    (cell,) = found["cells"]
    assert cell["verdict"] == "flaky"
    assert cell["sides"]["fixed"]["outcome"] == "passed", "or this test shows nothing"
    assert "the example that was found failed" in cell["why"]
    assert "once more with the fix applied: failed: assert 307 != 307" in cell["why"]


def test_the_memory_of_a_daemon_counts_and_idle_forks_add_none(prove: Prove) -> None:
    prove.write(
        GOOD + "@guards('toy-plain')\ndef test_daemon():\n"
        "    words = 'import time; x = bytearray(b\"1\") * (300 << 20); time.sleep(600)'\n"
        "    subprocess.Popen(['setsid', '-f', sys.executable, '-c', words])\n"
        "    buggy()\n    time.sleep(600)\n"
        "@guards('toy-plain')\ndef test_forks():\n"
        "    for _ in range(12):\n"
        "        if not os.fork():\n            time.sleep(600)\n"
        "    time.sleep(1)\n    assert not buggy()\n"
    )
    code, found = run_prove(prove, "--memory", "0.15")
    assert code == 1
    assert read_verdicts(found) == {
        "test_good": "proven",
        "test_daemon": "out-of-memory",
        "test_forks": "proven",
    }


def test_a_second_attempt_is_reported(prove: Prove) -> None:
    prove.write(
        "@guards('toy-plain')\ndef test_it():\n"
        "    if not notes('once'):\n"
        "        buggy()\n        note('once')\n"
        "        os.kill(os.getppid(), signal.SIGKILL)\n        time.sleep(600)\n"
        "    assert not buggy()\n"
    )
    code, found = run_prove(prove)
    assert code == 0
    assert "at the second attempt" in found["cells"][0]["why"]
    reach = {side: cell["reach"] for side, cell in found["cells"][0]["sides"].items()}
    assert reach == {"fixed": 1, "buggy": 1}, "the first attempt's is not counted"


def test_files_of_a_killed_run_are_no_result(prove: Prove) -> None:
    """They go with it, and a guard that reports nothing when resumed has no older reach."""
    prove.write(
        "@guards('toy-plain')\ndef test_it():\n    buggy()\n"
        "    note('home', os.environ['HOME'])\n    time.sleep(600)\n"
    )
    running = prove.start()
    place = prove.shared / "home"
    wait_until(lambda: place.exists() and place.read_text())
    running.send_signal(signal.SIGKILL)
    running.communicate()
    run_folder = Path(place.read_text()).parent
    wait_until(lambda: not run_folder.exists())
    # The code's digest is the same guard's; its behaviour depends on this file.
    done = prove.again("prove", "--resume", "--json", "--limit", "5")
    found = json.loads(done.stdout)
    assert read_verdicts(found) == {"test_it": "hang"}
    assert found["cells"][0]["sides"]["fixed"]["reach"] == 1


def test_a_run_whose_guards_have_changed_is_not_resumed(prove: Prove) -> None:
    prove.write(GOOD.replace("    assert", "    time.sleep(600)\n    assert"))
    running = prove.start()
    prove.wait_for(verdicts=0)
    running.send_signal(signal.SIGINT)
    running.communicate()
    prove.write(GOOD)
    done = prove.again("prove", "--resume")
    assert done.returncode == 2
    assert "have changed since" in done.stderr


def test_a_stopped_run_is_not_green_although_all_it_has_is_proven(prove: Prove) -> None:
    prove.write(GOOD + GOOD.replace("test_good", "test_slow").replace("assert", "time.sleep(600);"))
    running = prove.start("-j", "2")
    prove.wait_for(verdicts=1)
    running.send_signal(signal.SIGKILL)
    running.communicate()
    done = prove.again("report", "--json", "--junit", str(prove.root / "out.xml"))
    assert done.returncode == 1
    assert any("was stopped" in problem for problem in json.loads(done.stdout)["problems"])
    assert "was stopped" in (prove.root / "out.xml").read_text()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--limit", "nan"), "--limit is a positive number, and not nan"),
        (("--memory", "nan"), "--memory is a positive number, and not nan"),
        (("--memory", "inf"), "--memory is a positive number, and not inf"),
        (("--memory", "0"), "--memory is a positive number, and not 0"),
        (("--memory", "-1"), "--memory is a positive number, and not -1"),
        (("-j", "0"), "-j is a positive number, and not 0"),
        (("--shard", "3/2"), "3/2"),
        (("--release", ""), "--release"),
        (("--release", ","), "--release"),
    ],
)
def test_a_wrong_option_is_a_wrong_call(prove: Prove, words: tuple[str, ...], reason: str) -> None:
    prove.write(GOOD)
    done = prove.again("prove", *words) if words[0] == "--release" else prove.run(*words)
    assert done.returncode == 2, done.stderr
    assert reason in done.stderr
    assert "Traceback" not in done.stderr


def test_the_replay_command_of_a_guard_in_the_user_s_folder_works(prove: Prove) -> None:
    prove.write(
        "@guards('toy-plain')\n@given(rows=st.integers(0, 9))\n"
        "def test_it(rows):\n    assert forms.plain(rows, 3) == rows * 6\n"
    )
    _, found = run_prove(prove)
    line = found["cells"][0]["sides"]["buggy"]["replay"]
    words = shlex.split(line.partition(" -- ")[2])
    done = subprocess.run(
        [sys.executable, *words[1:]],
        cwd=paths.project_folder(),
        env={**prove.environment, "UNFIX_TOGGLES": str(TOY / "toggles")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "caught" in done.stdout
    assert "1 passed" in done.stdout
