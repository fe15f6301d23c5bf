"""CUDA kernels in sessions that did not ask for them, as the tests of a suite under check are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from harness.sanitizer.check import session, virtual_check
from harness.sanitizer.check.launch_log import KernelLaunch
from harness.sanitizer.cuda import cudart
from harness.sanitizer.cuda.host_calls import CALLS, BoundsRunner, find_living_allocation
from harness.sanitizer.cuda.session import check_launches
from harness.sanitizer.ptx.executor import load_module
from harness.sanitizer.ptx.launch import CudaLaunch
from harness.sanitizer.violations.exceptions import (
    OutOfBounds,
    UncheckableKernel,
    UninitializedMemory,
)

FAULTS = (Path(__file__).parents[1] / "ptx/faults.ptx").read_text()
REFUSED = """.version 9.0
.target sm_90a
.address_size 64
.visible .entry refused(
	.param .u64 refused_param_0
)
{
	wgmma.fence.sync.aligned;
	ret;
}
"""


@pytest.fixture(autouse=True)
def extension(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check CUDA launches in every session, as `unfix exec --cuda-kernels` does."""
    monkeypatch.setattr(virtual_check, "SESSION_EXTENSIONS", [check_launches])
    monkeypatch.setattr(cudart, "take_last_error", lambda: 0)  # no library is loaded
    yield
    assert isinstance(CALLS.runner, BoundsRunner)


def call_host(text: str, entry: str, *tensors: torch.Tensor, own: int = 0) -> None:
    """Call a host function that launches a kernel with 32 threads.

    The first `own` tensors are no arguments of the call: the host function allocates them itself.
    """
    module = load_module(text)

    def launch_kernel() -> None:
        words = [*(tensor.data_ptr() for tensor in tensors), 32]
        packed = b"".join(word.to_bytes(8, "little") for word in words)
        running = CALLS._stack[-1]
        running.file = "faults.cu"
        launch = CudaLaunch(
            entry,
            entry,
            (1, 1, 1),
            (32, 1, 1),
            0,
            packed,
            running.allocations,
            find_living_allocation,
        )
        CALLS.runner.run(module, launch, running)

    def host_function(*tensors: torch.Tensor) -> None:
        launch_kernel()

    names = tuple(f"tensor_{place}" for place in range(own, len(tensors)))
    CALLS.run(f"jit:faults.{entry}", names, set(), host_function, tensors[own:])


def make_rows(first_index: int = 0) -> tuple[torch.Tensor, ...]:
    index = torch.arange(32, dtype=torch.int32, device="cuda")
    index[0] = first_index
    return torch.zeros(32, device="cuda"), torch.ones(32, device="cuda"), index


def test_a_launch_is_one_of_the_session_with_its_place() -> None:
    launches: list[KernelLaunch] = []
    with session.checked("virtual") as check:
        check.launches.observers.append(launches.append)
        out, values, index = make_rows()
        call_host(FAULTS, "read_row", out, values, index)
        assert out.tolist() == [1.0] * 32
    assert [(one.kernel, one.module, one.place) for one in launches] == [
        ("read_row", "jit:faults.read_row", "faults.cu")
    ]


def test_what_host_code_allocates_and_a_kernel_writes_is_initialized() -> None:
    """DeepSeek's plan of compression: one call returns it, the next one reads it."""
    with session.checked("virtual"):
        _, values, index = make_rows()
        plan = torch.empty(32, device="cuda")
        call_host(FAULTS, "read_row", plan, values, index, own=1)
        out = torch.zeros(32, device="cuda")
        call_host(FAULTS, "read_row", out, plan, index)
        assert out.tolist() == [1.0] * 32


def test_a_kernel_that_reads_what_host_code_only_allocated_is_reported() -> None:
    with session.checked("virtual") as check:
        out, _, index = make_rows()
        with pytest.raises(UninitializedMemory, match="an allocation of 128 bytes"):
            call_host(FAULTS, "read_row", out, torch.empty(32, device="cuda"), index, own=2)
        check.discard_errors()


def test_a_report_ends_the_call_and_is_kept_where_the_caller_catches_it() -> None:
    reported: list[str] = []
    with session.checked("virtual", max_reports=16) as check:
        check.launches.violation_observers.append(lambda one: reported.append(one.headline))
        rows = make_rows(32)
        with pytest.raises(OutOfBounds, match=r"past the end of tensor_1 \(its index 32"):
            call_host(FAULTS, "read_row", *rows)
        (violation,) = check.launches.errors
        check.discard_errors()
    assert isinstance(violation, OutOfBounds)
    assert reported == [violation.headline]


@pytest.mark.parametrize("checks", [("bounds",), ("bounds", "uninitialized")])
def test_the_checks_are_those_of_the_session(checks: tuple[str, ...]) -> None:
    with session.checked("virtual", checks=checks) as check:
        out, _, index = make_rows()
        values = torch.empty(32, device="cuda")
        if "uninitialized" in checks:
            with pytest.raises(UninitializedMemory, match="tensor_1"):
                call_host(FAULTS, "read_row", out, values, index)
            check.discard_errors()
        else:
            call_host(FAULTS, "read_row", out, values, index)


def test_a_refused_launch_says_why() -> None:
    with session.checked("virtual") as check:
        with pytest.raises(UncheckableKernel, match="wgmma"):
            call_host(REFUSED, "refused")
        assert "wgmma" in check.launches[0].refusal_reason
        check.discard_errors()


def test_what_opens_the_first_session_is_called_once(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[str] = []
    monkeypatch.setattr(CALLS, "prepare", lambda: prepared.append("opened"))
    with session.checked("virtual"):
        for _ in range(2):
            call_host(FAULTS, "read_row", *make_rows())
    assert prepared == ["opened"]
