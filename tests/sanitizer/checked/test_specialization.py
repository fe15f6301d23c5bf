"""Symbolic constants: one compiled program gives what a program for each constant would."""

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
from triton.errors import TritonError
from triton.language.semantic import TritonSemantic

from harness import checking
from harness.sanitizer.cpu import program_cache
from harness.sanitizer.triton import adapter, frontend, specialization


@triton.jit
def part(lane, first: tl.constexpr, second: tl.constexpr):
    if first > second:
        return lane * first
    return lane // second


@triton.jit
def use_constants(target, first: tl.constexpr, second: tl.constexpr, BLOCK: tl.constexpr):
    """A kernel that uses its constants in every way that the front end has."""
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


def run_checked(kernel: Any, target: torch.Tensor, *args: int, **constants: int) -> Any:
    """Return the target's values after a launch, or the message of its violation."""
    try:
        with checking.checked():
            kernel[(1,)](target, *args, **constants)
    except (checking.Violation, checking.UncheckableKernel, TritonError) as error:
        return str(error)
    return target.tolist()


def compute_with_constants(first: int, second: int) -> Any:
    return run_checked(use_constants, torch.zeros(8, dtype=torch.int64), first, second, BLOCK=8)


def report_address(kernel: Any, row: int, stride: int, more: int) -> Any:
    return run_checked(kernel, torch.zeros(64, dtype=torch.int32), row, stride, more)


def without_specialization(call: Any, *args: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        for kernel in (use_constants, far, there_and_back):
            patch.setattr(kernel, "device_caches", type(kernel.device_caches)(kernel.create_binder))
        patch.setattr(specialization, "specialize_call", lambda kernel, binder, bound: bound)
        return call(*args)


@pytest.fixture
def program_keys(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the keys of programs that are compiled or read from disk."""
    keys: list[str] = []
    load_program = program_cache.load_program

    def record_key(key: str, *more: Any) -> Any:
        keys.append(key)
        return load_program(key, *more)

    monkeypatch.setattr(program_cache, "load_program", record_key)
    return keys


def test_one_compiled_program_serves_all_strides_and_widths(program_keys: list[str]) -> None:
    for stride, width in [(9, 5), (5, 5), (11, 2), (64, 8), (1000, 7)]:
        source, target = torch.arange(4 * stride), torch.zeros(4, width, dtype=torch.int64)
        with checking.checked():
            known.by_rows[(4,)](source, target, stride, width, BLOCK=8)
        assert target.tolist() == source.view(4, stride)[:, :width].tolist()
    assert len(program_keys) == 1


def test_each_block_size_is_compiled_separately(program_keys: list[str]) -> None:
    for block in (8, 16, 32, 16):
        with checking.checked():
            known.by_rows[(1,)](torch.zeros(64), torch.zeros(64), 40, 7, BLOCK=block)
    assert len(program_keys) == 3


@settings(deadline=None, max_examples=50)
@given(first=st.integers(0, 12), second=st.integers(1, 12))
@example(first=7, second=5)
def test_a_specialized_kernel_gives_the_results_of_an_unspecialized_one(
    first: int, second: int
) -> None:
    assert compute_with_constants(first, second) == without_specialization(
        compute_with_constants, first, second
    )


@pytest.mark.parametrize("kernel", [far, there_and_back])
@settings(deadline=None, max_examples=25)
@given(row=st.integers(-3, 70), stride=st.integers(0, 2**31), more=st.integers(0, 2**31))
@example(row=1, stride=2**31 - 1, more=1)
@example(row=2, stride=2**30, more=5)
@example(row=1, stride=2**31, more=2)
@example(row=3, stride=20, more=3)
@example(row=3, stride=20, more=4)
@example(row=5, stride=2**31 - 2, more=2**31 - 3)
def test_a_specialized_kernel_gives_the_reports_of_an_unspecialized_one(
    kernel: Any, row: int, stride: int, more: int
) -> None:
    assert report_address(kernel, row, stride, more) == without_specialization(
        report_address, kernel, row, stride, more
    )


def test_a_specialization_holds_for_constants_that_meet_its_conditions() -> None:
    target = torch.zeros(8, dtype=torch.int32)
    bound = frontend.get_binder(far).bind((target, 3, 30, 7), {})
    shared = specialization.specialize_call(far, frontend.get_binder(far), bound)
    assert [
        (argument.name, argument.type, argument.value) for argument in shared.symbolic_arguments
    ] == [
        ("v[2]", "i32", 30),
        ("v[3]", "i32", 7),
    ]
    assert all("v[2]" in text or "v[3]" in text for text in shared.specialization.conditions)
    assert shared.specialization.matches({2: 31, 3: 2})
    assert not shared.specialization.matches({2: 31, 3: 2**31})


def test_a_patch_of_triton_is_undone_when_threads_overlap() -> None:
    """The second thread waits, so that it does not save the first one's patch."""
    before = TritonSemantic.scalar_constant
    inside, leave = threading.Event(), threading.Event()

    def second() -> None:
        with adapter.accept_symbolic_ints():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=second)
    with adapter.accept_symbolic_ints():
        thread.start()
        overlapped = inside.wait(0.2)
    leave.set()
    thread.join()
    assert inside.is_set()
    assert not overlapped
    assert TritonSemantic.scalar_constant is before
