"""Ends of a run: its budget is used up, it is stopped, or its worker is killed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from calling import PATIENCE_SECONDS, list_living_processes, wait_until
from forked import UNFIX
from nights import Nights, by_test, read_failures

from harness.core.errors import NotReadyError
from harness.runs.fuzz.recorded_search import FuzzListener, RecordedSearch
from harness.runs.fuzz.release_search import GRACE_SECONDS
from harness.runs.fuzz.runner import FuzzDriver
from harness.store.database import Store
from harness.store.fuzz.table import FuzzTable
from harness.store.fuzz.values import FuzzRun

PASSING = """
@guards("toy-plain")
@given(topk=st.integers(0, 10**9))
def test_guard(topk):
    assert forms.plain(1, topk) == 2 * topk
"""
FAILING = """
@given(number=st.integers(0, 100))
def test_fails(number):
    assert number < 50
"""
KILLS = """
@given(number=st.integers(0, 10**6))
def test_kills_its_worker_once(number):
    place = os.path.join(os.environ["UNFIX_HOME"], "killed")
    if number > 1000 and not os.path.exists(place):
        open(place, "w").close()
        keeper = os.getppid()
        worker = int(open(f"/proc/{keeper}/stat").read().rpartition(")")[2].split()[1])
        os.kill(worker, signal.SIGKILL)
        time.sleep(60)
"""


def test_a_night_without_a_failure_ends_with_0(nights: Nights) -> None:
    nights.write(PASSING)
    done = nights.run("--for", "1s", "-j", "1")
    assert done.returncode == 0, done.stderr
    assert "0 failures" in done.stdout
    assert "2/2 of the toggled code" in done.stdout
    (run,) = FuzzTable(Store(nights.root / ".unfix" / "runs.sqlite")).list_runs()
    assert 0 < run.search_seconds < min(run.seconds, 1 + GRACE_SECONDS)
    assert nights.call([*UNFIX, "report"]).stdout == done.stdout, "the newest run, as it ended"
    assert (nights.root / "reports" / "out" / f"{run.id}.html").exists()
    assert not (nights.root / ".unfix" / "fuzz" / "failures").exists()


def test_a_night_with_one_names_it_with_the_line_that_replays_it(nights: Nights) -> None:
    nights.write(FAILING)
    done = nights.run_until(lambda done: "number=50" in done.stdout, "-j", "1", seconds=1)
    assert done.returncode == 1, done.stderr
    (file,) = (nights.root / ".unfix" / "fuzz" / "failures").iterdir()
    line = f"./unfix fuzz --replay .unfix/fuzz/failures/{file.name}"
    assert line in done.stderr
    assert line in done.stdout
    assert "number=50" in done.stdout
    assert done.stderr.splitlines()[0] == "unfix: SGLang 1.0.0: importing"


def test_the_same_seed_draws_the_same_examples(nights: Nights) -> None:
    nights.write(
        """
@given(number=st.integers(0, 10**9))
def test_writes(number):
    with open(os.path.join(os.environ["UNFIX_HOME"], "drawn"), "a") as file:
        file.write(f"{number}\\n")
"""
    )
    drawn = nights.root / "drawn"
    found = []
    for seed in ("1", "1", "2"):
        going = nights.start("--seed", seed, "-j", "1", "--for", "10m")
        wait_until(lambda: drawn.exists() and drawn.read_text().count("\n") >= 20)
        going.send_signal(signal.SIGINT)
        going.communicate(timeout=PATIENCE_SECONDS)
        found.append(drawn.read_text().split()[:20])
        drawn.unlink()
        shutil.rmtree(nights.root / ".unfix" / "fuzz" / "examples")
    assert found[0] == found[1]
    assert found[0] != found[2]


def test_a_stopped_run_keeps_its_failures(nights: Nights) -> None:
    nights.write(FAILING)
    going = nights.start("--for", "10m", "-j", "2", "--json")
    folder = nights.root / ".unfix" / "fuzz" / "failures"
    wait_until(lambda: any(folder.glob("*.json")))
    going.send_signal(signal.SIGINT)
    out, err = going.communicate(timeout=PATIENCE_SECONDS)
    assert going.returncode == 130, err
    assert "stopped; its failures are stored" in err
    night = json.loads(out)
    assert night["status"] == "stopped"
    assert set(read_failures(night)) == {"fails"}
    assert [Path(kept["file"]) for kept in night["failures"]] == list(folder.glob("*.json"))
    wait_until(lambda: not list_living_processes(nights.root))


def test_a_stopped_run_keeps_a_failure_that_is_not_shrunk_yet(nights: Nights) -> None:
    nights.write(
        """
@given(numbers=st.lists(st.integers(0, 10**6), min_size=40, max_size=50))
def test_shrinks_slowly(numbers):
    time.sleep(0.5)
    assert sum(numbers) < 1000
"""
    )
    going = nights.start("--for", "10m", "-j", "1", "--json")
    wait_until(lambda: any(nights.root.rglob("*.found")))
    going.send_signal(signal.SIGINT)
    out, err = going.communicate(timeout=PATIENCE_SECONDS)
    assert going.returncode == 130, err
    (found,) = read_failures(json.loads(out))["shrinks_slowly"]
    assert not found["shrunk"]
    assert found["blob"]


def test_a_worker_that_dies_is_replaced_and_costs_what_it_ran(nights: Nights) -> None:
    nights.write(KILLS + PASSING)
    killed = nights.root / "killed"

    def is_enough(night: dict[str, Any]) -> bool:
        if by_test(night)["guard"]["examples"] > 100:
            return True
        killed.unlink()
        return False

    night = nights.night("-j", "1", is_enough=is_enough)
    (found,) = read_failures(night)["kills_its_worker_once"]
    assert found["error"] == "lost"
    assert found["blob"]
    # Its turn came first, so all of this ran in another worker.
    assert by_test(night)["guard"]["examples"] > 100
    assert night["status"] == "finished"
    wait_until(lambda: not list_living_processes(nights.root))


def test_a_slice_that_hangs_before_its_first_example_is_a_problem(nights: Nights) -> None:
    nights.write(
        """
@pytest.fixture
def hangs():
    time.sleep(600)

@given(number=st.integers())
def test_waits(hangs, number):
    pass
"""
    )
    night = nights.night("-j", "1", seconds=1)
    (problem,) = night["problems"]
    assert "test_waits: an example was not done at the end" in problem


def test_a_budget_begins_when_the_release_is_imported(nights: Nights) -> None:
    nights.write("time.sleep(1.5)\n" + PASSING)
    night = nights.night("-j", "1", seconds=1, code=0)
    assert by_test(night)["guard"]["examples"] > 0


def test_a_later_release_whose_import_outlasts_the_run_is_no_green_run() -> None:
    search: Any = SimpleNamespace(name="1.0.0", running={}, deadline=0.0, test_states=[])
    search.request, search.budget = SimpleNamespace(seconds=5.0), SimpleNamespace(deadline=100.0)
    RecordedSearch.enforce_limits(search, now=99.0)
    words = "5 s were over before SGLang 1.0.0 was imported: say more with --for"
    with pytest.raises(NotReadyError, match=words):
        RecordedSearch.enforce_limits(search, now=101.0)


def test_a_second_signal_waits_until_what_was_found_is_recorded() -> None:
    """The run is stopped, or its engine failed: the slices that run have failures in files."""

    class Files:
        def read_note(self) -> SimpleNamespace:
            os.kill(os.getpid(), signal.SIGINT)
            return SimpleNamespace(examples=5)

        def read_failures(self) -> list[object]:
            return []

    found = [SimpleNamespace(examples=0), SimpleNamespace(examples=0)]
    release: Any = SimpleNamespace(has_ended=True, end_workers=lambda: None)
    release.get_files, release.measure_coverage = lambda each: Files(), list
    release.rescue_failures = lambda: RecordedSearch.rescue_failures(release)
    release.running = {
        number: SimpleNamespace(item=SimpleNamespace(test_state=SimpleNamespace(test_result=one)))
        for number, one in enumerate(found)
    }
    request: Any = SimpleNamespace(targets=[], jobs=1, seconds=5.0)
    driver = FuzzDriver(request, FuzzRun("fuzz-1", "2026-01-01T00:00:00+00:00"), FuzzListener())
    driver.releases = [release]
    with contextlib.suppress(KeyboardInterrupt):
        driver.run_to_end()
    assert [one.examples for one in found] == [5, 5]


def test_a_file_that_cannot_be_collected_is_a_problem(nights: Nights) -> None:
    nights.write(PASSING)
    nights.write("import nowhere\n", "test_broken.py")
    night = nights.night("-j", "1", seconds=1)
    (problem,) = night["problems"]
    assert "test_broken.py cannot be collected" in problem
    assert by_test(night)["guard"]["examples"] > 0
