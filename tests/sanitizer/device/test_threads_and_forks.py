"""The device is there in every thread, in every fork and in new processes of `unfix exec`."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from harness import checking
from harness.core import device, paths
from harness.core.child_process import call_in_fork
from harness.patching.child_environment import STARTUP_FOLDER
from harness.sanitizer.device import cards


@triton.jit
def add_one(values, count: tl.constexpr):
    places = tl.arange(0, count)
    tl.store(values + places, tl.load(values + places) + 1)


def use_device() -> list[float]:
    values = torch.ones(4, device="cuda")
    assert values.is_cuda
    return (values * 2).tolist()


def test_another_thread_has_the_device() -> None:
    found: list[object] = []
    thread = threading.Thread(
        target=lambda: found.append((use_device(), torch.cuda.is_available()))
    )
    thread.start()
    thread.join()
    assert found == [([2, 2, 2, 2], True)]


def test_a_fork_has_the_device() -> None:
    torch.set_num_threads(1)
    assert call_in_fork(use_device) == [2, 2, 2, 2]


def test_each_thread_has_its_own_stream_and_device() -> None:
    found: list[object] = []
    with torch.cuda.stream(torch.cuda.Stream()):
        thread = threading.Thread(target=lambda: found.append(torch.cuda.current_stream()))
        thread.start()
        thread.join()
    assert found == [torch.cuda.default_stream()]


def test_kernels_run_on_device_tensors_under_check() -> None:
    with checking.checked("virtual") as check:
        values = torch.zeros(4, device=check.device)
        add_one[(1,)](values, 4)
        assert values.tolist() == [1, 1, 1, 1]
        assert [launch.kernel for launch in check.launches] == ["add_one"]


def test_a_check_names_the_argument_that_is_overrun() -> None:
    with checking.checked("virtual") as check:
        values = torch.zeros(3, device=check.device)
        with pytest.raises(checking.OutOfBounds, match="values"):
            add_one[(1,)](values, 4)
        check.discard_errors()


def test_a_launch_is_captured_and_replayed() -> None:
    with checking.checked("virtual"):
        values = torch.zeros(4, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            add_one[(1,)](values, 4)
        values.zero_()
        graph.replay()
        graph.replay()
        assert values.tolist() == [2, 2, 2, 2]


def test_a_process_of_an_environment_on_the_device_starts_on_it(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import torch, threading\n"
        "print(torch.cuda.get_device_name(), torch.ones(1, device='cuda').device)\n"
    )
    environment = {
        **os.environ,
        device.DEVICE_VARIABLE: device.VIRTUAL,
        "UNFIX_VIRTUAL_CARD": "B200",
        "PYTHONPATH": f"{STARTUP_FOLDER}:{paths.project_folder()}",
    }
    done = subprocess.run(
        [sys.executable, str(program)], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "NVIDIA B200 cuda:0\n"), done.stderr


def test_a_kernel_reads_what_another_thread_has_written() -> None:
    """As weights are, which SGLang copies in a pool of threads."""
    with checking.checked("virtual") as check:
        values, missing = (torch.empty(4, device="cuda") for _ in range(2))
        thread = threading.Thread(target=lambda: values.copy_(torch.ones(4)))
        thread.start()
        thread.join()
        add_one[(1,)](values, 4)
        assert values.tolist() == [2, 2, 2, 2]
        with pytest.raises(checking.UninitializedMemory):
            add_one[(1,)](missing, 4)
        check.discard_errors()


def test_the_table_of_cards_is_read_once_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test under check opens a session, and each session asks for the card."""
    monkeypatch.setattr(cards.yaml, "safe_load", lambda _: pytest.fail("the table is read again"))
    assert cards.get_card("H200").name.startswith("NVIDIA H200")
