"""Items in forks of a process that imported SGLang once, several lanes at a time.

The process reads its request from stdin and answers in lines of JSON: first how long its import
took, then the number of each item whose result is in a file. A lane takes numbers from a queue that
all lanes share, and runs each item in forks of its own.

Invariant: every item gets a result. A fork that dies or takes too long gives one that says so.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from harness.core import child_process, preloading, process_exit, processes
from harness.core.files import write_atomically
from harness.workers.function_recorder import record_functions
from harness.workers.line_tracer import trace_chosen_files

ResultT = TypeVar("ResultT", bound=msgspec.Struct)

RESULT_NAME = "result.json"
_NUMBER_BYTES = 4  # the size of an item's number in the queue
_LOG_BYTES = 6000


@dataclass(frozen=True, slots=True)
class ForkEnd:
    """How a fork of an item ended."""

    is_normal: bool
    words: str  # "exceeded 120 s", "died of SIGSEGV"
    log: str  # the end of its output


class AnswerPipe:
    """The worker's output: SGLang prints to 1, which becomes the log."""

    def __init__(self) -> None:
        self._descriptor = os.dup(1)
        os.dup2(2, 1)

    def send(self, message: dict[str, Any]) -> None:
        os.write(self._descriptor, json.dumps(message).encode() + b"\n")


def read_request() -> bytes:
    """Read the request, and die with the process that sent it."""
    processes.die_with_parent(os.getppid())
    return sys.stdin.buffer.read()


def run_in_lanes(
    count: int, lanes: int, folder: Path, answers: AnswerPipe, run_item: Callable[[int], bytes]
) -> None:
    """Run each item by its number, write its result, and end this process."""
    read, write = os.pipe()
    for number in range(count):
        os.write(write, number.to_bytes(_NUMBER_BYTES))
    os.close(write)

    def run_lane() -> None:
        processes.adopt_orphans()
        while name := os.read(read, _NUMBER_BYTES):
            number = int.from_bytes(name)
            (folder / str(number)).mkdir(exist_ok=True)
            write_atomically(folder / str(number) / RESULT_NAME, run_item(number))
            answers.send({"done": number})

    for lane in [child_process.fork_process(run_lane) for _ in range(lanes)]:
        lane.reap()
    os._exit(0)  # an orderly exit would run what SGLang has registered


def measure_processor_seconds() -> float:
    """Return what the ended forks of this lane have taken of a processor so far."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def compute_in_fork(
    folder: Path, seconds: float, compute: Callable[[], Any], result_type: type[ResultT]
) -> tuple[ResultT | None, ForkEnd]:
    """Compute a result in a fork, with the functions of SGLang that ran for it.

    The result is None where `compute` has none, and where the fork ended before it had one.
    """
    file = folder / RESULT_NAME

    def write_result() -> None:
        with record_functions() as functions, trace_chosen_files() as lines:
            result = compute()
        if result is not None:
            result.functions, result.lines = functions, lines
            write_atomically(file, msgspec.json.encode(result))

    end = run_fork(folder, seconds, write_result)
    result = msgspec.json.decode(file.read_bytes(), type=result_type) if file.exists() else None
    return result, end


def run_fork(folder: Path, seconds: float, run: Callable[[], None]) -> ForkEnd:
    """Run a function in a fork whose output is a file of the folder, within a limit of seconds."""
    folder.mkdir(exist_ok=True)
    child = child_process.fork_process(partial(_run_with_log, folder, run), new_session=True)
    is_late = not child.wait_for_exit(seconds)
    if is_late:
        child.send_signal(signal.SIGABRT)  # faulthandler writes the stacks
        if not child.wait_for_exit(3.0):
            child.send_signal(signal.SIGKILL)
    code = child.reap()
    processes.kill_descendants(os.getpid())
    limit: dict[str, Any] = {"exceeded_seconds": seconds} if is_late else {}
    log = processes.read_log_tail(folder / "output", _LOG_BYTES)
    words = process_exit.describe_exit(code, **limit).words
    return ForkEnd(code == 0 and not is_late, words, log)


def _run_with_log(folder: Path, run: Callable[[], None]) -> None:
    import faulthandler

    faulthandler.enable(child_process.redirect_output(folder / "output"))
    preloading.ignore_freezing()
    run()
