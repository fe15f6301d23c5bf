"""Constants that a kernel only computes with: one program, and all as it is with one for each."""

from __future__ import annotations

import threading
from typing import Any

import kernels_to_check as known
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import example, given, settings
from hypothesis import strategies as st
from triton.language.semantic import TritonSemantic

from harness import checking
from harness.kernels.check import cpu_launcher
from harness.kernels.triton import adapter, frontend, specialization


@triton.jit
def part(lane, first: tl.constexpr, second: tl.constexpr):
    if first > second:
        return lane * first
    return lane // second


@triton.jit
def asking(target, first: tl.constexpr, second: tl.constexpr, BLOCK: tl.constexpr):
    """A kernel that asks its constants all that the front end can be asked."""
    lane = tl.arange(0, BLOCK)
    total = lane * (first * second - 3) + part(lane, first, second)
    if first == 7:
        total += 1000
    elif first % 4 == 2 and second:
        total -= second
    for turn in tl.static_range(first // 3):
        total += turn * second
    for turn in range(0, second, first):
        total += turn
    even: tl.constexpr = (5 if first in (4, 6, 8) else 2) << (second & 3)
    total += tl.sum(tl.arange(0, even if first < 4 else 4) + first // second, 0)
    total += (first / 2 > second) + max(first, second) + tl.cdiv(second, first)
    tl.store(target + lane, total.to(tl.int64) * (first << 29) + -second)


@triton.jit
def far(target, row, stride: tl.constexpr, more: tl.constexpr):
    at = row * stride + more
    tl.store(target + at, 1)


@triton.jit
def there_and_back(target, row, more: tl.constexpr, less: tl.constexpr):
    at = row + more - less
    tl.store(target + at, 1)


def asked(first: int, second: int) -> Any:
    target = torch.zeros(8, dtype=torch.int64)
    try:
        with checking.checked():
            asking[(1,)](target, first, second, BLOCK=8)
    except (checking.Violation, cpu_launcher.UncheckableKernel) as error:
        return str(error)
    return target.tolist()


def reached(kernel: Any, row: int, stride: int, more: int) -> str:
    try:
        with checking.checked():
            kernel[(1,)](torch.zeros(64, dtype=torch.int32), row, stride, more)
    except (checking.Violation, cpu_launcher.UncheckableKernel) as error:
        return str(error)
    return ""


def each_for_itself(call: Any, *args: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        for kernel in (asking, far, there_and_back):
            patch.setattr(kernel, "device_caches", type(kernel.device_caches)(kernel.create_binder))
        patch.setattr(specialization, "specialize_call", lambda kernel, binder, bound: bound)
        return call(*args)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The programs that are made or looked for on disk."""
    keys: list[str] = []
    program_of = cpu_launcher.cpu.load_program

    def noted(key: str, *more: Any) -> Any:
        keys.append(key)
        return program_of(key, *more)

    monkeypatch.setattr(cpu_launcher.cpu, "load_program", noted)
    return keys


def test_one_program_serves_all_strides_and_widths(made: list[str]) -> None:
    for stride, width in [(9, 5), (5, 5), (11, 2), (64, 8), (1000, 7)]:
        source, target = torch.arange(4 * stride), torch.zeros(4, width, dtype=torch.int64)
        with checking.checked():
            known.by_rows[(4,)](source, target, stride, width, BLOCK=8)
        assert target.tolist() == source.view(4, stride)[:, :width].tolist()
    assert len(made) == 1


def test_a_shape_is_a_program_of_its_own(made: list[str]) -> None:
    for block in (8, 16, 32, 16):
        with checking.checked():
            known.by_rows[(1,)](torch.zeros(64), torch.zeros(64), 40, 7, BLOCK=block)
    assert len(made) == 3


@settings(deadline=None, max_examples=50)
@given(first=st.integers(0, 12), second=st.integers(1, 12))
@example(first=7, second=5)
def test_the_result_is_that_of_a_program_for_these_constants(first: int, second: int) -> None:
    assert asked(first, second) == each_for_itself(asked, first, second)


@pytest.mark.parametrize("kernel", [far, there_and_back])
@settings(deadline=None, max_examples=25)
@given(row=st.integers(-3, 70), stride=st.integers(0, 2**31), more=st.integers(0, 2**31))
@example(row=1, stride=2**31 - 1, more=1)
@example(row=2, stride=2**30, more=5)
@example(row=1, stride=2**31, more=2)
@example(row=3, stride=20, more=3)
@example(row=3, stride=20, more=4)
@example(row=5, stride=2**31 - 2, more=2**31 - 3)
def test_a_report_is_that_of_a_program_for_these_constants(
    kernel: Any, row: int, stride: int, more: int
) -> None:
    assert reached(kernel, row, stride, more) == each_for_itself(reached, kernel, row, stride, more)


def test_what_a_kernel_asks_is_known() -> None:
    target = torch.zeros(8, dtype=torch.int32)
    bound = frontend.get_binder(far).bind((target, 3, 30, 7), {})
    shared = specialization.specialize_call(far, frontend.get_binder(far), bound)
    assert [(one.name, one.type, one.value) for one in shared.symbolic_arguments] == [
        ("v[2]", "i32", 30),
        ("v[3]", "i32", 7),
    ]
    assert all("v[2]" in text or "v[3]" in text for text in shared.specialization.conditions)
    assert shared.specialization.matches({2: 31, 3: 2})
    assert not shared.specialization.matches({2: 31, 3: 2**31})


def test_what_is_swapped_in_triton_comes_back_though_threads_meet() -> None:
    """The second one finds Triton as it was, and not what the first has put there."""
    before = TritonSemantic.scalar_constant
    inside, leave = threading.Event(), threading.Event()

    def second() -> None:
        with adapter.accept_symbolic_ints():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=second)
    with adapter.accept_symbolic_ints():
        thread.start()
        met = inside.wait(0.2)
    leave.set()
    thread.join()
    assert inside.is_set()
    assert not met
    assert TritonSemantic.scalar_constant is before
