"""Checks for uninitialized reads and races that are written into PTX, as a GPU would run them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import ptx_kernels
import pytest
from instrumented_kernels import instrument_text, launch_with_checks
from ptx_kernels import describe_array, pack_parameters

from harness.sanitizer.gpu import POISON
from harness.sanitizer.ptx.check_values import OTHER_WIDTHS, make_checked_parameters
from harness.sanitizer.ptx.instrumented_entries import MAY_SYNCHRONIZE, TOO_WIDE
from harness.sanitizer.ptx.instrumented_kernel import MAX_RACE_GROUPS, RaceGroup
from harness.sanitizer.violations.exceptions import (
    OutOfBounds,
    UninitializedMemory,
    Violation,
)

_READS, _RACES = ("bounds", "uninitialized"), ("bounds", "races")


def make_kernel(body: str) -> str:
    """Write a kernel with the block's number in %r1 and the thread's in %r2."""
    return ptx_kernels.make_kernel(f"mov.u32 %r1, %ctaid.x;\nmov.u32 %r2, %tid.x;\n{body}", 2)


def make_poisoned(count: int, kind: Any) -> Any:
    return np.full(count * np.dtype(kind).itemsize, POISON, np.uint8).view(kind)


def read_poison(body: str, source: Any, target: Any, **options: Any) -> list[Violation]:
    tensors = {"target": target, "source": source}
    parameters = pack_parameters(target, source)
    return launch_with_checks(make_kernel(body), parameters, tensors, checks=_READS, **options)


# Uninitialized reads


@pytest.mark.parametrize(
    ("load", "kind", "index"),
    [
        ("ld.global.u16 %rs1, [%rd2+12];", np.uint16, 6),
        ("ld.global.nc.u32 %r3, [%rd2+12];", np.uint32, 3),
        ("ld.global.b64 %rd3, [%rd2+8];", np.uint64, 1),
        ("ld.global.v4.u32 {%r3, %r4, %r5, %r6}, [%rd2];", np.uint32, 2),
        ("{ .reg .b64 %q; add.s64 %q, %rd2, 8; ld.global.u32 %r3, [%q]; }", np.uint32, 2),
        ("mov.u64 %rd4, 0; cp.async.ca.shared.global [%rd4], [%rd2], 16;", np.uint32, 2),
        ("atom.global.add.u32 %r3, [%rd2+12], 1;", np.uint32, 3),
        ("red.global.add.u32 [%rd2+12], 1;", np.uint32, 3),
    ],
)
def test_a_read_of_poison_is_reported_where_it_is(load: str, kind: Any, index: int) -> None:
    source, target = make_poisoned(16 // np.dtype(kind).itemsize, kind), np.zeros(8, np.uint32)
    if "cp.async" in load:
        load = ".shared .align 16 .b8 room[16];\nmov.u64 %rd4, room;" + load.partition(";")[2]
    source[: len(source) // 2] = 7
    [error] = read_poison(load, source, target)
    assert isinstance(error, UninitializedMemory)
    verb = "updated" if "add.u32" in load else "read"
    assert error.headline == f"k {verb} uninitialized memory: source, index {index}"
    source[:] = 7
    assert read_poison(load, source, target) == []


def test_a_value_beside_written_ones_is_no_poison() -> None:
    source, target = make_poisoned(8, np.uint16), np.zeros(8, np.uint32)
    source[5] = 1
    assert read_poison("ld.global.u16 %rs1, [%rd2+12];", source, target) == []


def test_what_lies_behind_a_tensor_does_not_count() -> None:
    memory, target = make_poisoned(8, np.uint16), np.zeros(8, np.uint32)
    memory[7] = 1
    load = "ld.global.u16 %rs1, [%rd2+12];"
    assert len(read_poison(load, memory[:7], target, mapped={"source": memory})) == 1
    assert read_poison(load, memory, target) == []


def test_a_read_that_does_not_happen_is_no_report() -> None:
    source, target = make_poisoned(4, np.uint32), np.zeros(8, np.uint32)
    body = "setp.eq.u32 %p1, %r2, {}; @%p1 ld.global.u32 %r3, [%rd2];"
    assert read_poison(body.format(1), source, target) == []
    assert len(read_poison(body.format(0), source, target)) == 1


def test_a_copy_of_no_bytes_reads_nothing_wherever_it_points() -> None:
    source, target = make_poisoned(4, np.uint32), np.zeros(8, np.uint32)
    body = (
        ".shared .align 16 .b8 room[16];\nmov.u64 %rd4, room; mov.u32 %r3, {};"
        "cp.async.cg.shared.global [%rd4], [%rd2+{}], 16, %r3;"
    )
    assert read_poison(body.format(0, 1 << 20), source, target) == []
    assert read_poison(body.format(8, 0), source, target) == []  # nobody says which bytes count
    assert len(read_poison(body.format(16, 0), source, target)) == 1


def test_poison_that_torch_did_not_write_is_a_value() -> None:
    source, target = make_poisoned(4, np.uint32), np.zeros(8, np.uint32)
    load = "ld.global.u32 %r3, [%rd2];"
    assert read_poison(load, source, target, empty=("target",)) == []
    assert len(read_poison(load, source, target, empty=("source",))) == 1


def test_reports_of_poison_leave_room_for_an_access_outside_at_the_same_place() -> None:
    """Four threads read poison, and the fifth, which runs behind them, reads past the end."""
    source, target = make_poisoned(4, np.uint32), np.zeros(8, np.uint32)
    body = "mul.wide.u32 %rd3, %r2, 4; add.s64 %rd4, %rd2, %rd3; ld.global.u32 %r3, [%rd4];"
    kinds = [type(one) for one in read_poison(body, source, target, block=(5, 1, 1))]
    assert kinds == [OutOfBounds, *[UninitializedMemory] * 4]


# Races


def run_race(
    body: str, blocks: int = 4, kind: Any = np.uint32, is_one: bool = False
) -> list[Violation]:
    """Run a kernel on two halves of an array, or on all of it by both of its parameters."""
    target = np.zeros(64, kind)
    tensors = {"target": target, "source": target if is_one else target[32:]}
    parameters, grid = pack_parameters(*tensors.values()), (blocks, 1, 1)
    return launch_with_checks(make_kernel(body), parameters, tensors, grid, checks=_RACES)


_ROW = "mul.wide.u32 %rd3, %r1, 4; add.s64 %rd4, %rd1, %rd3;"


@pytest.mark.parametrize(
    "body",
    [
        f"{_ROW} st.global.u32 [%rd4], %r1; ld.global.u32 %r3, [%rd4];",  # each its own
        "st.global.u32 [%rd1], 5;",  # the same value
        "ld.global.u32 %r3, [%rd1]; st.global.u32 [%rd1], 0;",  # it changes nothing
        "red.global.add.u32 [%rd1], 1;",
        "ld.global.u32 %r3, [%rd1]; st.global.u32 [%rd1+64], 0;",
    ],
)
def test_blocks_that_do_not_meet_are_no_race(body: str) -> None:
    assert run_race(body) == []


def test_a_vector_meets_a_single_element_in_it() -> None:
    body = (
        "setp.eq.u32 %p1, %r1, 0; @%p1 st.global.v4.u32 [%rd1], {%r1, %r1, %r1, 3};"
        "@!%p1 st.global.u32 [%rd1+12], %r1;"
    )
    first = run_race(body)[0]
    assert "write different values to target, index 3" in first.headline


@pytest.mark.parametrize(
    ("store", "kind"),
    [
        ("cvt.u16.u32 %rs1, %r1; st.global.u8 [%rd1], %rs1;", np.uint8),
        ("cvt.u16.u32 %rs1, %r1; st.global.v2.b16 [%rd1], {%rs1, %rs1};", np.uint16),
        ("cvt.u64.u32 %rd5, %r1; st.global.b64 [%rd1], %rd5;", np.uint64),
        ("{ .reg .b64 %q; mov.b64 %q, %rd1; st.global.u32 [%q], %r1; }", np.uint32),
    ],
)
def test_values_of_each_width_are_compared(store: str, kind: Any) -> None:
    assert "write different values" in run_race(store, kind=kind)[0].headline


def test_a_tensor_that_two_parameters_name_is_one() -> None:
    body = f"{_ROW} add.u32 %r3, %r1, 1; st.global.u32 [%rd4], %r3; ld.global.u32 %r4, [%rd2];"
    assert "writes and block" in run_race(body, is_one=True)[0].headline
    assert run_race(body) == []  # another part of the memory


@pytest.mark.parametrize(
    "body",
    [
        "atom.global.add.u32 %r3, [%rd2], 1; st.global.u32 [%rd1], %r3;",
        "ld.volatile.global.u32 %r3, [%rd2]; st.global.u32 [%rd1], %r1;",
        "barrier.cluster.arrive.aligned; st.global.u32 [%rd1], %r1;",
    ],
)
def test_a_kernel_whose_blocks_may_wait_for_each_other_is_counted(body: str) -> None:
    kernel = instrument_text(make_kernel(body), _RACES).kernels["k"]
    assert kernel.race_groups == []
    assert kernel.unchecked[MAY_SYNCHRONIZE] > 0
    assert "exch" not in re.sub(r"//.*", "", instrument_text(make_kernel(body), _RACES).text)


@pytest.mark.parametrize("kind", ["st.global.b128 [%rd2], %rq1;", "ld.global.u32 %r3, [%rd2];"])
def test_a_write_of_more_than_eight_bytes_is_counted(kind: str) -> None:
    body = f".reg .b128 %rq<2>; mov.b128 %rq1, {{%rd1, %rd1}}; st.global.b128 [%rd1], %rq1; {kind}"
    kernel = instrument_text(make_kernel(body), _RACES).kernels["k"]
    assert kernel.race_groups == []
    assert kernel.unchecked == {TOO_WIDE: 1 + ("st." in kind)}


@pytest.mark.parametrize(("width", "count"), [("u16", 1), ("u32", 0)])
def test_pointers_of_other_widths_into_one_memory_are_counted(width: str, count: int) -> None:
    body = f"st.global.u32 [%rd1], %r1; ld.global.{width} {{}}, [%rd2];"
    body = body.format("%rs1" if width == "u16" else "%r3")
    kernel = instrument_text(make_kernel(body), _RACES).kernels["k"]
    memory, other = np.zeros(64, np.uint32), np.zeros(64, np.uint32)
    for source, expected in ((memory, count), (other, 0)):
        known = (describe_array("target", memory), describe_array("source", source))
        checked = make_checked_parameters(
            kernel, pack_parameters(memory, source), known, lambda _: None, 0, 0, shadow=(16, 32)
        )
        assert checked.skipped_checks == (OTHER_WIDTHS,) * expected


def test_a_launch_without_shadow_memory_is_not_looked_at() -> None:
    kernel = instrument_text(make_kernel("st.global.u32 [%rd1+8], %r1;"), _RACES).kernels["k"]
    target = np.zeros(64, np.uint32)
    known = (describe_array("target", target),)
    for shadow, mask in ((None, 0), ((16, 32), 1)):
        checked = make_checked_parameters(
            kernel, pack_parameters(target, 0), known, lambda _: None, 0, 0, shadow=shadow
        )
        assert int.from_bytes(checked.data[32:40], "little") == mask


def test_accesses_that_share_a_parameter_are_one_group() -> None:
    body = (
        "setp.eq.u32 %p1, %r1, 0; selp.b64 %rd3, %rd1, %rd2, %p1; st.global.u32 [%rd3], 1;"
        "ld.global.u16 %rs1, [%rd1];"
    )
    kernel = instrument_text(make_kernel(body), _RACES).kernels["k"]
    assert kernel.race_groups == [RaceGroup((0, 8), 2, ("read", "write"))]
    target = np.zeros(64, np.uint32)
    packed, known = pack_parameters(target, target), (describe_array("target", target),)
    checked = make_checked_parameters(kernel, packed, known, lambda _: None, 0, 0, shadow=(16, 32))
    assert int.from_bytes(checked.data[32:40], "little") == 1 | 1 << MAX_RACE_GROUPS
