"""Ctrl-C and SIGTERM end a run between two results, and leave no process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from calling import list_living_processes, wait_until
from toy_kind import ToyEngine, ToyPool

# A run that stores each result as a line, in two parts with time for a signal between them.
PROGRAM = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from toy_kind import ToyPool
from harness.workers.engine import Engine
folder = Path(sys.argv[1])

class Storing(ToyPool):
    def record(self, item, outcome):
        super().record(item, outcome)
        with open(folder / "stored", "a") as file:
            file.write(item + " ")
            file.flush()
            time.sleep(0.2)
            file.write("ended\\n")

    def end_workers(self):
        (folder / "ending").touch()
        super().end_workers()

pool = Storing(folder, *(f"pass {number}" for number in range(200)), "hang")
engine = Engine([pool], 2)
try:
    engine.run()
finally:
    engine.end()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_while_a_result_is_stored_stores_it_whole(tmp_path: Path, number: int) -> None:
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    running = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path), *folders],
        env={**os.environ, "UNFIX_HOME": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    stored = tmp_path / "stored"
    wait_until(lambda: stored.exists() and stored.read_text().count("ended") >= 2)
    running.send_signal(number)
    running.send_signal(number)  # a second one changes nothing before the result is stored
    error = running.communicate(timeout=60)[1]
    assert "KeyboardInterrupt" in error
    lines = stored.read_text().splitlines()
    assert all(line.endswith(" ended") for line in lines)
    assert 2 <= len(lines) < 10
    assert (tmp_path / "ending").exists()
    wait_until(lambda: not list_living_processes(tmp_path))


def test_signals_act_as_before_once_the_run_is_over(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    engine = ToyEngine([ToyPool(tmp_path, "pass 1")], 1)
    engine.run()
    engine.end()
    assert signal.getsignal(signal.SIGINT) is before


def test_an_error_while_a_result_is_stored_ends_the_run_and_its_workers(tmp_path: Path) -> None:
    """As on a full disk."""

    class DiskThatFills(ToyPool):
        def record(self, item: str, outcome: str) -> None:
            raise OSError(28, "No space left on device")

    pool = DiskThatFills(tmp_path, "pass 1", "hang")
    engine = ToyEngine([pool], 2)
    with pytest.raises(OSError, match="No space left"):
        engine.run()
    (worker,) = pool.workers
    engine.end()
    assert worker.process.poll() is not None
    assert not os.path.exists(f"/proc/{worker.process.pid}")


def test_a_run_in_another_thread_leaves_signals_to_the_main_one(tmp_path: Path) -> None:
    pool = ToyPool(tmp_path, "pass 1")
    engine = ToyEngine([pool], 1)
    with ThreadPoolExecutor(1) as threads:
        threads.submit(engine.run).result()
    engine.end()
    assert set(pool.results) == {"pass 1"}


def test_a_stop_in_the_last_turn_counts(tmp_path: Path) -> None:
    """A kind may have more to run after this engine: it must not go on as if nobody had asked."""

    class Stopped(ToyPool):
        def record(self, item: str, outcome: str) -> None:
            super().record(item, outcome)
            os.kill(os.getpid(), signal.SIGINT)

    pool = Stopped(tmp_path, "pass 1")
    engine = ToyEngine([pool], 1)
    with pytest.raises(KeyboardInterrupt):
        engine.run()
    engine.end()
    assert set(pool.results) == {"pass 1"}
