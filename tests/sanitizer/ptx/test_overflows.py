"""An overflow is found where it gets into an address, and a difference or a packed word is none.

The executor and the checks that are written into PTX for a GPU ask the same question.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from instrumented_kernels import instrument_text, launch_with_checks
from planted_faults import TEXT, check_place
from ptx_kernels import launch_text, make_kernel, pack_parameters

from harness.sanitizer.ptx.launch import ExecutorChecks
from harness.sanitizer.violations.exceptions import IntegerOverflow

Launch = Callable[..., list[Any]]
LAUNCHES: dict[str, Launch] = {"executor": launch_text, "checks in PTX": launch_with_checks}


@pytest.fixture(params=LAUNCHES)
def launch(request: pytest.FixtureRequest) -> Launch:
    """A function that launches a kernel and returns the reports."""
    return LAUNCHES[request.param]


def launch_fault(
    launch: Launch, entry: str, out: np.ndarray, *values: Any, **options: Any
) -> list[Any]:
    """Launch a kernel of `faults.cu` with 32 threads."""
    arrays = [value for value in values if isinstance(value, np.ndarray)]
    tensors = {"out": out, **dict(zip(("index",), arrays, strict=False))}
    parameters = pack_parameters(out, *values)
    return launch(TEXT, parameters, tensors, entry=entry, block=(32, 1, 1), **options)


def store_at(index: str) -> str:
    """Write a kernel that computes an index in %r4, with the first number of `out` in %r1."""
    return make_kernel(
        f"ld.global.u32 %r1, [%rd1]; {index} mul.wide.u32 %rd2, %r4, 4;"
        "add.s64 %rd3, %rd1, %rd2; st.global.u32 [%rd3], 7;"
    )


@pytest.mark.parametrize(
    ("entry", "marker", "row", "stride", "true"),
    [
        ("overflow_product", "signed product", 1 << 20, 1 << 12, 1 << 32),
        ("overflow_unsigned", "unsigned product", 1 << 20, 1 << 13, 1 << 33),
        ("overflow_shift", "shift", 1 << 12, 0, 1 << 32),
    ],
)
def test_an_overflow_on_its_way_into_an_address_is_found(
    launch: Launch, entry: str, marker: str, row: int, stride: int, true: int
) -> None:
    out = np.zeros(64, np.float32)
    first = launch_fault(launch, entry, out, row | stride << 32)[0]
    assert isinstance(first, IntegerOverflow)
    assert f"{true} became 0 in 32 bits" in str(first)
    check_place(first, marker, (0, 0, 0))
    assert launch_fault(launch, entry, out, 0) == []


def test_overflow_is_looked_for_if_that_is_asked() -> None:
    out, numbers = np.zeros(64, np.float32), 1 << 20 | 1 << 44
    quiet = ExecutorChecks(overflow=False)
    assert launch_fault(launch_text, "overflow_product", out, numbers, checks=quiet) == []
    found = launch_fault(launch_with_checks, "overflow_product", out, numbers, checks=("bounds",))
    assert found == []


def test_overflow_alone_reports_no_bounds() -> None:
    alone = ("overflow",)
    assert instrument_text(make_kernel("st.global.u32 [%rd1+64], 1;"), alone).kernels[
        "k"
    ].sites == []  # fmt: skip
    out = np.zeros(64, np.float32)
    first = launch_fault(launch_with_checks, "overflow_product", out, 1 << 20 | 1 << 44,
                         checks=alone)[0]  # fmt: skip
    assert isinstance(first, IntegerOverflow)
    kernel = instrument_text(TEXT, alone).kernels["overflow_product"]
    assert kernel.sites
    assert kernel.entries == []


def test_an_index_that_32_bits_do_not_hold_is_found(launch: Launch) -> None:
    out, index = np.zeros(64, np.float32), np.arange(32)
    assert launch_fault(launch, "overflow_narrowing", out, index) == []
    index[9] = 1 << 32
    [found] = launch_fault(launch, "overflow_narrowing", out, index)
    assert "4294967296 became 0" in str(found)
    check_place(found, "narrowing", (9, 0, 0))


_EXTENDED = "shl.b64 \t%rd8, %rd7, 32;\n\tshr.s64 \t%rd9, %rd8, 30;"
_CONVERTED = "cvt.u32.u64 \t%r1, %rd7;\n\tmul.wide.s32 \t%rd9, %r1, 4;"


def launch_narrowing(code: str, index: np.ndarray, out: np.ndarray) -> list[Any]:
    """Launch the kernel that narrows an index, with other code in the place of its own."""
    assert TEXT.count(_EXTENDED) == 1
    text, tensors = TEXT.replace(_EXTENDED, code), {"out": out, "index": index}
    parameters = pack_parameters(out, index)
    return launch_text(text, parameters, tensors, entry="overflow_narrowing", block=(32, 1, 1))


@pytest.mark.parametrize("narrowing", [_EXTENDED, _CONVERTED])
def test_a_word_of_a_pair_is_no_narrowed_index(narrowing: str) -> None:
    """A kernel packs an epoch above an index, and reads the epoch by a shift."""
    out, index = np.zeros(64, np.float32), np.arange(32) | 5 << 32
    [found] = launch_narrowing(narrowing, index, out)
    assert "became 0 in 32 bits" in str(found)
    assert launch_narrowing(f"shr.u64 \t%rd10, %rd7, 32;\n\t{narrowing}", index, out) == []
    assert out[:32].tolist() == [1] * 32


def test_a_shift_by_an_amount_of_a_loop_is_no_packed_word() -> None:
    """The amount is an argument of the loop's block, which no operation defines."""
    loop = (
        ".reg .b32 \t%i<2>;\n\t.reg .b64 \t%b<2>;\n\t.reg .pred \t%q<2>;\n\t"
        "mov.u32 \t%i1, 0;\n$L_bytes:\n\tshr.u64 \t%b1, %rd7, %i1;\n\tadd.s32 \t%i1, %i1, 8;\n\t"
        "setp.lt.s32 \t%q1, %i1, 64;\n\t@%q1 bra \t$L_bytes;\n\t"
    )
    out = np.zeros(64, np.float32)
    assert launch_narrowing(loop + _EXTENDED, np.arange(32), out) == []
    assert out[:32].tolist() == [1] * 32


def test_a_difference_that_a_sum_undoes_is_no_overflow(launch: Launch) -> None:
    out = np.zeros(64, np.float32)
    assert launch_fault(launch, "wraps_and_returns", out, 3 | 5 << 32) == []
    assert out[3] == 1


@pytest.mark.parametrize(
    ("start", "end", "place"), [(3, 9, 5), (0, 9, 8), (9, 9, None)], ids=str
)  # fmt: skip
def test_a_difference_less_one_is_computed_with_a_complement(
    launch: Launch, start: int, end: int, place: int | None
) -> None:
    """nvcc makes `end - start - 1` of unsigned numbers `end + ~start`."""
    text = store_at("ld.global.u32 %r2, [%rd1+4]; not.b32 %r3, %r1; add.s32 %r4, %r2, %r3;")
    out = np.zeros(16, np.uint32)
    out[:2] = start, end
    found = launch(text, pack_parameters(out), {"out": out})
    assert [isinstance(one, IntegerOverflow) for one in found] == [True] * (place is None)
    assert place is None or out[place] == 7
    assert launch is not launch_text or all("-1 became 4294967295" in str(one) for one in found)


@pytest.mark.parametrize(
    ("code", "numbers", "place"),
    [
        ("add.s32 %r4, %r1, %r2;", (3, 4), 7),
        ("sub.s32 %r4, %r1, %r2;", (9, 4), 5),
        ("sub.s32 %r4, %r1, %r2;", (4, 9), None),
        ("sub.s32 %r3, %r1, %r2; max.s32 %r4, %r3, 2;", (4, 9), 2),
        ("sub.s32 %r3, %r1, %r2; min.s32 %r4, %r3, 2;", (9, 4), 2),
        ("neg.s32 %r3, %r1; add.s32 %r4, %r3, %r2;", (4, 9), 5),
        ("mul.lo.s32 %r4, %r1, %r2;", (3, 4), 12),
        ("mul.lo.s32 %r4, %r1, %r2;", (1 << 16, 1 << 16), None),
        ("mad.lo.s32 %r4, %r1, %r2, 3;", (2, 5), 13),
        ("mad.lo.s32 %r4, %r1, %r2, 3;", (1 << 16, 1 << 16), None),
        ("shl.b32 %r4, %r1, %r2;", (3, 2), 12),
        ("shl.b32 %r4, %r1, %r2;", (4, 30), None),
        ("sub.s32 %r3, %r1, %r2; setp.eq.u32 %p1, %r1, 4; selp.b32 %r4, 6, %r3, %p1;", (4, 9), 6),
        (
            "sub.s32 %r3, %r1, %r2; setp.eq.u32 %p1, %r1, 5; selp.b32 %r4, 6, %r3, %p1;",
            (4, 9),
            None,
        ),
    ],
)
def test_an_index_is_followed_through_each_operation(
    launch: Launch, code: str, numbers: tuple[int, int], place: int | None
) -> None:
    out = np.zeros(16, np.uint32)
    out[:2] = numbers
    text = store_at(f"ld.global.u32 %r2, [%rd1+4]; {code}")
    reports = launch(text, pack_parameters(out), {"out": out})
    assert [isinstance(report, IntegerOverflow) for report in reports] == [True] * (place is None)
    assert place is None or out[place] == 7


@pytest.mark.parametrize(("step", "found"), [(512, 0), (256, 1)])
def test_a_loop_that_begins_one_step_early_overflows_only_if_it_stays_below(
    launch: Launch, step: int, found: int
) -> None:
    """The compiler makes `k - 512` of an unsigned k below 512 `k | -512`, and adds 512 first."""
    text = store_at(f"and.b32 %r2, %r1, 15; or.b32 %r3, %r2, -512; add.s32 %r4, %r3, {step};")
    out = np.zeros(16, np.uint32)
    reports = [str(one) for one in launch(text, pack_parameters(out), {"out": out})]
    overflows = [report for report in reports if "overflows" in report]
    assert len(overflows) == found
    assert launch is not launch_text or all("-256 became 4294967040" in one for one in overflows)


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("mov.u32 %r2, %r1;", 1),  # a number that a tensor holds may be anything
        ("and.b32 %r2, %r1, 1023;", 1),  # and one below 1024 is not below 512
        ("and.b32 %r2, %r1, 511;", 0),
        ("shr.u32 %r2, %r1, 23;", 0),
        ("rem.u32 %r2, %r1, 512;", 0),
        ("mov.u32 %r2, %laneid; shl.b32 %r2, %r2, 4;", 0),
        ("mov.u32 %r2, %laneid; shl.b32 %r2, %r2, 5;", 1),
        ("mov.u32 %r2, %tid.x;", 1),  # up to 1,024 threads
    ],
)
def test_bits_that_may_reach_a_power_of_two_are_no_difference_from_it(
    launch: Launch, code: str, found: int
) -> None:
    """Of `unsigned(x | 0xFFFFFE00) + 512` the wrap is reported, unless x is below 512."""
    text = store_at(f"{code} or.b32 %r3, %r2, -512; add.s32 %r4, %r3, 512;")
    out = np.zeros(16, np.uint32)
    reports = launch(text, pack_parameters(out), {"out": out})
    assert [isinstance(report, IntegerOverflow) for report in reports] == [True] * found


@pytest.mark.parametrize(("limit", "found"), [(512, 0), (513, 1)])
def test_the_threads_of_a_kernel_bound_its_differences(
    launch: Launch, limit: int, found: int
) -> None:
    text = store_at("mov.u32 %r2, %tid.x; or.b32 %r3, %r2, -512; add.s32 %r4, %r3, 512;")
    text = text.replace("{", f".maxntid {limit}, 1, 1\n{{", 1)
    out = np.zeros(16, np.uint32)
    assert len(launch(text, pack_parameters(out), {"out": out})) == found


@pytest.mark.parametrize("use", ["shr.u32 %r4, %r3, 28;", "min.u32 %r4, %r3, 15;"])
def test_the_complement_of_a_key_is_its_bits_and_no_overflow(launch: Launch, use: str) -> None:
    """A radix sort of descending keys takes its bins from the bits of `~key`."""
    out = np.zeros(16, np.uint32)
    assert launch(store_at(f"not.b32 %r3, %r1; {use}"), pack_parameters(out), {"out": out}) == []
    assert out[15] == 7
