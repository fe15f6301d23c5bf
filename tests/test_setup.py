"""`./unfix` on a fresh checkout: it sets itself up once, or fails with one sentence.

One set-up here uses the machine's own pip and venv. The others put a fake pip and venv on
PYTHONPATH, which do at once the work that takes the real ones seconds, or fail as those do.
"""

from __future__ import annotations

import os
import runpy
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from calling import PATIENCE_SECONDS, measure_processor_seconds, run_program, wait_until
from checkout import BASE_PYTHON, Checkout, copy_of_the_tree, fake_tools, without_tools

from harness import __version__
from harness.core import paths

ANSWER = f"unfix {__version__}\n"
SETTING_UP = "unfix: setting up .venv, once"
STILL_SETTING_UP = "unfix: setting up .venv, for"
NO_NETWORK = {
    "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
    "PIP_FIND_LINKS": "",
    "PIP_EXTRA_INDEX_URL": "",
    "PIP_CONFIG_FILE": os.devnull,
    "PIP_RETRIES": "0",
}


def read_messages(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the lines that do not only tell how long it takes, on a busy machine."""
    return [line for line in done.stderr.splitlines() if not line.startswith(STILL_SETTING_UP)]


def assert_one_sentence(done: subprocess.CompletedProcess[str], *says: str) -> None:
    """Assert that the set-up was refused: exit 3, and one line with the reason."""
    messages = [line for line in read_messages(done) if line != SETTING_UP]
    assert (done.returncode, done.stdout, len(messages)) == (3, "", 1), done.stderr
    assert messages[0].startswith("unfix: ")
    for words in says:
        assert words in messages[0]


@dataclass(frozen=True)
class RepairedSetup:
    """A checkout whose first set-up found no index, and whose second one used the real tools."""

    checkout: Checkout
    refusal: subprocess.CompletedProcess[str]
    repair: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def repaired_setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RepairedSetup]:
    folder = tmp_path_factory.mktemp("set-up")
    checkout = Checkout(without_tools(copy_of_the_tree(folder / "made")))
    quick_venv = fake_tools(folder / "fakes", with_real_pip=True)
    refusal = Checkout(checkout.tree, quick_venv).call(**NO_NETWORK)
    assert (checkout.tree / ".venv" / "bin" / "python").exists()
    assert not checkout.ready.exists()
    yield RepairedSetup(checkout, refusal, checkout.call())
    shutil.rmtree(folder, ignore_errors=True)  # a real environment takes 100 MB


@pytest.fixture
def fake(tmp_path: Path) -> Checkout:
    """A fresh checkout of the engine and the toggles, beside a fake pip and venv."""
    tree = copy_of_the_tree(tmp_path / "tree", "harness", "toggles")
    return Checkout(tree, fake_tools(tmp_path / "fakes"))


def test_the_first_call_sets_up_and_answers(fake: Checkout) -> None:
    done = fake.call()
    assert (done.returncode, done.stdout, read_messages(done)) == (0, ANSWER, [SETTING_UP])
    assert fake.ready.is_file()
    assert (fake.tree / ".unfix").is_dir()  # without it each `list` would read all sources anew


def test_no_network_is_said_in_one_sentence_and_the_next_call_repairs(
    repaired_setup: RepairedSetup,
) -> None:
    says = ("package index cannot be reached", "PIP_INDEX_URL", "connect")
    assert_one_sentence(repaired_setup.refusal, *says)
    done = repaired_setup.repair
    assert (done.returncode, done.stdout, read_messages(done)) == (0, ANSWER, [SETTING_UP])
    assert repaired_setup.checkout.ready.is_file()


def test_the_second_call_starts_at_once_and_runs_no_pip(
    repaired_setup: RepairedSetup, fake: Checkout
) -> None:
    """Compare with the environment's own Python, in seconds of a processor."""
    spied = Checkout(repaired_setup.checkout.tree, fake.fakes)
    mark = spied.ready.stat().st_ino, spied.ready.stat().st_mtime_ns
    python = [str(spied.tree / ".venv" / "bin" / "python"), "-P", "-m", "harness", "--version"]
    least, most = [], []
    answers: list[subprocess.CompletedProcess[str]] = []
    for _ in range(5):
        plain = partial(run_program, python, env=spied.variables(), cwd="/", check=True)
        least.append(measure_processor_seconds(plain))
        call = partial(spied.call, FAKE_PIP_SAYS="pip was called", **NO_NETWORK)
        most.append(measure_processor_seconds(lambda call=call: answers.append(call())))  # type: ignore[misc]
    done = answers[-1]
    assert min(most) < min(least) + 0.5
    assert (done.returncode, done.stdout, done.stderr, spied.pips) == (0, ANSWER, "", [])
    assert (spied.ready.stat().st_ino, spied.ready.stat().st_mtime_ns) == mark


def test_the_arguments_and_the_exit_code_are_handed_over(repaired_setup: RepairedSetup) -> None:
    done = repaired_setup.checkout.call("show", "no-such-toggle")
    assert done.returncode == 2
    assert "no-such-toggle" in done.stderr


def test_it_is_itself_wherever_it_is_called_from(
    repaired_setup: RepairedSetup, tmp_path: Path
) -> None:
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "__init__.py").touch()
    (tmp_path / "harness" / "__main__.py").write_text("raise SystemExit('somebody else')")
    checkout = repaired_setup.checkout
    (tmp_path / "link").symlink_to(checkout.tree / "unfix")
    words = [str(tmp_path / "link"), "--version"]
    done = run_program(words, cwd=tmp_path, env=checkout.variables())
    assert (done.returncode, done.stdout, done.stderr) == (0, ANSWER, "")


def test_a_pip_that_outlives_its_set_up_does_not_write_into_the_next_one(fake: Checkout) -> None:
    with fake.start(FAKE_PIP_SECONDS="1") as process:
        wait_until(lambda: fake.pips == ["begins"])
        process.kill()
    assert fake.pips == ["begins"]
    assert fake.call().stdout == ANSWER
    assert fake.pips == ["begins", "ends"] * 2


def test_a_set_up_killed_with_its_pip_is_repaired_by_the_next_call(fake: Checkout) -> None:
    with fake.start(FAKE_PIP_SECONDS="60") as process:
        wait_until(lambda: fake.pips == ["begins"])
        os.killpg(process.pid, signal.SIGKILL)
    assert (fake.tree / ".venv" / "bin" / "python").exists()
    assert not fake.ready.exists()
    assert fake.call().stdout == ANSWER
    assert fake.pips == ["begins", "begins", "ends"]


def test_half_an_environment_or_one_without_its_python_is_made_anew(fake: Checkout) -> None:
    binaries = fake.tree / ".venv" / "bin"
    binaries.mkdir(parents=True)
    (binaries / "python").symlink_to(BASE_PYTHON)
    (binaries / "left-over").touch()
    assert fake.call().stdout == ANSWER
    assert not (binaries / "left-over").exists()
    (binaries / "python").unlink()
    (binaries / "python").symlink_to(fake.tree / "gone")
    assert fake.call().stdout == ANSWER


def test_two_calls_at_the_same_time_both_end_well_and_set_up_once(fake: Checkout) -> None:
    with fake.start(FAKE_PIP_SECONDS="1") as one, fake.start(FAKE_PIP_SECONDS="1") as other:
        answers = [process.communicate(timeout=PATIENCE_SECONDS)[0] for process in (one, other)]
    assert (answers, one.returncode, other.returncode) == ([ANSWER, ANSWER], 0, 0)
    assert fake.pips == ["begins", "ends"]


def test_new_dependencies_are_installed_also_from_inside_the_environment(fake: Checkout) -> None:
    assert fake.call().returncode == 0
    with open(fake.tree / "pyproject.toml", "a") as file:
        file.write("\n")
    inside = f"{fake.tree / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = fake.call(PATH=inside)
    assert (done.returncode, done.stdout, read_messages(done)) == (0, ANSWER, [SETTING_UP])
    assert fake.pips == ["begins", "ends"] * 2


def test_ctrl_c_stops_it_and_the_next_call_repairs(fake: Checkout) -> None:
    with fake.start(FAKE_PIP_SECONDS="60") as process:
        wait_until(lambda: fake.pips == ["begins"])
        os.killpg(process.pid, signal.SIGINT)
        messages = process.communicate(timeout=PATIENCE_SECONDS)[1]
    assert process.returncode == 130
    assert "Traceback" not in messages
    assert fake.call().stdout == ANSWER


OLDER = [f"python3.{minor}" for minor in range(6, 11)]


def older_pythons() -> list[str]:
    """Return Pythons below 3.11 that run here: on the PATH, or installed beside the one in use."""
    beside = Path(BASE_PYTHON).resolve().parents[2]
    found = [str(path) for name in OLDER for path in beside.glob(f"*/bin/{name}")]
    found += [path for name in OLDER if (path := shutil.which(name))]
    return [p for p in found if subprocess.run([p, "-c", ""], capture_output=True).returncode == 0]


def test_a_python_that_is_too_old_is_said_in_one_sentence(fake: Checkout) -> None:
    """Use Pythons that really are older, if there are any, and one that claims to be."""
    says = ("3.11 or newer is needed", "UNFIX_PYTHON")
    assert_one_sentence(fake.call(FAKE_VERSION="3.10.13"), "this is 3.10.13", *says)
    for python in older_pythons():
        assert_one_sentence(Checkout(fake.tree).call(UNFIX_PYTHON=python), *says)
    assert not (fake.tree / ".venv").exists()


@pytest.mark.parametrize("python", ["python-that-is-not-there", "false"])
def test_a_chosen_python_that_does_not_run_is_named(fake: Checkout, python: str) -> None:
    assert_one_sentence(fake.call(UNFIX_PYTHON=python), "UNFIX_PYTHON", python)


def test_the_chosen_python_is_the_one_that_is_used(fake: Checkout, tmp_path: Path) -> None:
    chosen = tmp_path / "chosen"
    chosen.write_text(f'#!/bin/sh\necho ran >> {tmp_path / "ran"}\nexec {BASE_PYTHON} "$@"\n')
    chosen.chmod(0o755)
    assert fake.call(UNFIX_PYTHON=str(chosen)).stdout == ANSWER
    assert (tmp_path / "ran").exists()


FULL = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"
NO_VENV = "The virtual environment was not created successfully because ensurepip is not available"
OTHER = "Collecting rich\nERROR: rich is for Python 4\nnote: this is not a problem with pip"


@pytest.mark.parametrize(
    ("trouble", "says"),
    [
        ({"FAKE_FREE": "1000"}, ("disk is full", "needs 0.5")),
        ({"FAKE_PIP_SAYS": FULL}, ("disk is full",)),
        ({"FAKE_VENV_SAYS": "[Errno 28] No space left"}, ("disk is full",)),
        ({"FAKE_VENV_SAYS": NO_VENV}, ("python3-venv",)),
        ({"FAKE_PIP_SAYS": "No module named pip"}, ("python3-venv",)),
        ({"FAKE_PIP_SAYS": OTHER}, ("ERROR: rich is for Python 4",)),
    ],
)
def test_trouble_is_said_in_one_sentence(
    fake: Checkout, trouble: dict[str, str], says: tuple[str, ...]
) -> None:
    assert_one_sentence(fake.call(**trouble), *says)
    assert not fake.ready.exists()


def test_an_unwritable_checkout_runs_only_when_ready(fake: Checkout) -> None:
    # Root writes anywhere, unless it drops the right: prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE).
    give_up, override = 24, 1
    program = (
        "import ctypes, os, sys; "
        f"ctypes.CDLL(None).prctl({give_up}, {override}, 0, 0, 0); "
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    words = [sys.executable, "-c", program, str(fake.tree / "unfix"), "list"]

    def call() -> subprocess.CompletedProcess[str]:
        return run_program(words, env=fake.variables(), cwd="/")

    fake.tree.chmod(0o555)
    try:
        assert_one_sentence(call(), "cannot be written", "Permission denied")
        fake.tree.chmod(0o755)
        assert fake.call().stdout == ANSWER
        fake.tree.chmod(0o555)
        done = call()
        assert done.returncode == 0, done.stderr
        assert "27460" in done.stdout
    finally:
        fake.tree.chmod(0o755)


def test_a_long_set_up_says_how_long_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    script = runpy.run_path(str(paths.HARNESS_FOLDER.parent / "unfix"))
    ends = iter([TimeoutError, TimeoutError, "done"])

    def communicate(timeout: float) -> tuple[object]:
        end = next(ends)
        if end is TimeoutError:
            raise subprocess.TimeoutExpired("pip", timeout)
        return (end,)

    assert script["wait_for_output"](SimpleNamespace(communicate=communicate)) == "done"
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"{STILL_SETTING_UP} {seconds} s of about 60" for seconds in (10, 20)]
