"""Real ranks over gloo, of which one hangs: its number, its stack, and no process left behind."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from calling import PATIENCE_SECONDS, wait_until

from harness.core import processes
from harness.workers.servers import rank_stacks

FILES = {
    "sglang/srt/managers/scheduler.py": """
import faulthandler, sys
import setproctitle, torch
import torch.distributed as dist
from sglang.srt.layers import late

rank, meeting = int(sys.argv[1]), sys.argv[2]
faulthandler.enable()
setproctitle.setproctitle(f"sglang::scheduler_TP{rank}")
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)

def run_batch():
    if rank:
        late.looks_for_what_is_not_there()
    dist.all_reduce(torch.ones(1))

dist.barrier()
print("ready", flush=True)
run_batch()
""",
    "sglang/srt/layers/late.py": """
import time

def looks_for_what_is_not_there():
    while True:
        time.sleep(0.1)
""",
}
SERVER = """
import subprocess, sys
ranks = [subprocess.Popen([sys.executable, *sys.argv[1:2], str(n), sys.argv[2]]) for n in (0, 1)]
for rank in ranks:
    rank.wait()
"""


def wait_until_it_sleeps(name: str, supervisor_pid: int) -> None:
    """Wait until the main thread of a rank sleeps and is not woken for half a second."""
    pid = dict(rank_stacks.list_ranks(supervisor_pid))[name]
    before: list[str] = []

    def is_asleep() -> bool:
        nonlocal before
        status = Path(f"/proc/{pid}/task/{pid}/status").read_text().splitlines()
        time.sleep(0.5)
        last, before = before, [line for line in status if re.match("State|.*switches", line)]
        return before == last and "S" in before[0].split()

    wait_until(is_asleep)


@pytest.fixture
def hung(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """A supervisor's process; below it a server and two ranks that wait for ever."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    log, scheduler = tmp_path / "log", tmp_path / "sglang/srt/managers/scheduler.py"
    keeper = "import subprocess, sys; subprocess.run([sys.executable, '-c', *sys.argv[1:]])"
    words = [sys.executable, "-c", keeper, SERVER, str(scheduler), str(tmp_path / "meeting")]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    with open(log, "a") as out:
        process = subprocess.Popen(words, stdout=out, stderr=out, env=environment)
    try:
        ends = time.monotonic() + PATIENCE_SECONDS
        while log.read_text().count("ready") < 2:
            assert time.monotonic() < ends, log.read_text()
            time.sleep(0.1)
        wait_until_it_sleeps("TP0", process.pid)
        yield process.pid, log
    finally:
        for pid in [*processes.iterate_descendants(process.pid), process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def test_the_rank_that_never_comes_is_told_from_those_that_wait(hung: tuple[int, Path]) -> None:
    waits, late = rank_stacks.dump_rank_stacks(*hung)
    assert (waits.name, waits.waits_for_ranks, waits.callee) == ("TP0", True, "all_reduce")
    assert waits.location.startswith("sglang/srt/managers/scheduler.py:")
    assert waits.location.endswith(", run_batch")
    assert (late.name, late.waits_for_ranks, late.callee) == ("TP1", False, "")
    assert late.location == "sglang/srt/layers/late.py:6, looks_for_what_is_not_there"
    assert str(waits) == f"rank TP0 waits in all_reduce, called at {waits.location}"
    assert str(late) == f"rank TP1 is at {late.location}"


def test_whoever_looks_after_the_server_can_still_end_it(hung: tuple[int, Path]) -> None:
    keeper, log = hung
    rank_stacks.dump_rank_stacks(keeper, log)
    processes_of_it = list(processes.iterate_descendants(keeper))
    assert Path(f"/proc/{keeper}/stat").read_text().rpartition(")")[2].split()[0] != "T"
    for pid in processes_of_it:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in processes_of_it))


def test_over_nccl_a_rank_stands_still_where_it_needs_an_answer_of_its_card() -> None:
    stack_lines = [
        "Current thread 0x00007f (most recent call first):",
        '  File "/site/torch/cuda/streams.py", line 227 in synchronize',
        '  File "/site/sglang/srt/managers/output.py", line 5 in process_batch_result',
        '  File "/site/sglang/srt/managers/scheduler.py", line 9 in event_loop_overlap',
    ]
    rank = rank_stacks._parse_rank_stack("TP0", stack_lines)
    assert (rank.waits_for_gpu, rank.waits_for_ranks) == (True, False)
    where = "sglang/srt/managers/output.py:5, process_batch_result"
    assert str(rank) == f"rank TP0 waits for its GPU in synchronize, called at {where}"
