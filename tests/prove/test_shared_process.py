"""A process for many tests, as its supervisor waits for it."""

from __future__ import annotations

import os

import msgspec
import pytest

from harness.core.child_process import ProcessHandle, call_in_fork
from harness.core.pipes import PipeEnd, make_pipe_pair
from harness.workers.shared_process import SharedProcess, SharedProcessReady


@pytest.mark.parametrize("count", [10, 3000])
def test_a_process_that_names_more_tests_than_a_pipe_holds_is_waited_for(count: int) -> None:
    tests = [f"suites/cuda_kernels/test_many.py::test_a_kernel[{n:040}]" for n in range(count)]

    def start_process() -> tuple[ProcessHandle, PipeEnd]:
        ours, child_end = make_pipe_pair()
        pid = os.fork()
        if not pid:
            ours.close()
            child_end.send(msgspec.json.encode(SharedProcessReady(tests)))
            list(child_end.iterate_lines())
            os._exit(0)
        child_end.close()
        return ProcessHandle(pid), ours

    def wait_for_it() -> None:
        process = SharedProcess(start_process, tests)
        try:
            process.wait_until_ready()
        finally:
            process.end()

    call_in_fork(wait_for_it)  # its end kills all that this process has started
