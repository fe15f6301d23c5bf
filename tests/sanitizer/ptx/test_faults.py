"""Each check finds the fault that is planted for it: at its line, its block and its thread."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from planted_faults import check_place, launch_fault, line_of, make_rows
from ptx_kernels import HEAD, launch_text, pack_parameters

from harness.sanitizer.ptx.instructions import Instruction
from harness.sanitizer.ptx.launch import ExecutorChecks
from harness.sanitizer.ptx.module_text import PtxText
from harness.sanitizer.ptx.reader import read_kernel
from harness.sanitizer.ptx.used_bytes import UsedBytes
from harness.sanitizer.violations.exceptions import (
    BarrierDivergence,
    KernelAssertion,
    LaunchRefused,
    MisalignedAccess,
    OutOfBounds,
    UncheckableKernel,
    UninitializedMemory,
)


def test_memory_of_the_host_is_out_of_reach_unless_it_is_pinned() -> None:
    """Host code gets such tensors as well, and may read them: a kernel may not."""
    parameters, tensors = make_rows()
    fields = {"values": {"size": 0, "is_pageable": True}}
    with pytest.raises(OutOfBounds, match="read values, which is in the host's memory and is not"):
        launch_fault("read_row", parameters, tensors, fields=fields)


def test_a_line_has_the_lines_that_it_is_inlined_at() -> None:
    parameters, tensors = make_rows()
    tensors["index"][5] = 64
    with pytest.raises(OutOfBounds) as caught:
        launch_fault("read_inlined", parameters, tensors)
    check_place(caught.value, "inlined", (5, 0, 0))
    [caller] = caught.value.location.inlined  # type: ignore[union-attr]
    assert f"faults.cu:{line_of('CALLER inlined')}  rows.out" in caller


@pytest.fixture
def neighbours() -> tuple[Any, Any, Any]:
    """Two tensors, one right after the other: an access past the first is inside the second."""
    both = np.arange(128, dtype=np.float32)
    return np.zeros(32, np.float32), both[:64], both[64:]


@pytest.mark.parametrize(
    ("entry", "marker", "names"),
    [
        ("through_select", "select", ("out", "b", "a", 40)),
        ("through_shared", "shared pointer", ("out", "a", 40)),
        ("through_local", "local pointer", ("out", "a", "b", 40, "which")),
        ("through_table", "table pointer", ("out", "table", 40)),
    ],
)
def test_a_pointer_keeps_its_tensor(
    entry: str, marker: str, names: tuple[str | int, ...], neighbours: Any
) -> None:
    """It is selected, goes through shared or local memory, or stands in a table."""
    out, a, b = neighbours
    tensors = {"out": out, "a": a, "b": b, "which": np.arange(4, dtype=np.int32)}
    tensors["table"] = np.array([a.ctypes.data, b.ctypes.data], np.uint64)
    parameters = pack_parameters(*(tensors[one] if isinstance(one, str) else one for one in names))
    tensors = {name: array for name, array in tensors.items() if name in (*names, "a", "b")}
    with pytest.raises(OutOfBounds, match=r"past the end of a .*(\n.*)*is in b") as caught:
        launch_fault(entry, parameters, tensors)
    check_place(caught.value, marker, (24, 0, 0))


def test_a_pointer_at_the_start_of_two_tensors_is_of_the_larger_one() -> None:
    parameters, tensors = make_rows()
    launch_fault("read_row", parameters, {"head": tensors["values"][:4], **tensors})
    launch_fault("read_row", parameters, {**tensors, "head": tensors["values"][:4]})


def test_a_moved_pointer_of_the_host_is_no_violation(neighbours: Any) -> None:
    """`rope.cuh` passes a pointer that the host moved before the start of its tensor."""
    out, a, b = neighbours
    moved = int(b.ctypes.data) - 64 * 4
    tensors = {"out": out, "a": a, "b": b}
    launch_fault("through_select", pack_parameters(out, a, moved, 64), tensors, block=(1, 1, 1))
    assert out[0] == b[0]


def test_shared_memory_has_bounds() -> None:
    out = np.zeros(32, np.float32)
    launch_fault("shared_bounds", pack_parameters(out, 0), {"out": out})
    assert out[3] == 106
    with pytest.raises(OutOfBounds, match=r"past the end of shared memory .*first") as caught:
        launch_fault("shared_bounds", pack_parameters(out, 4), {"out": out})
    check_place(caught.value, "shared bounds", (28, 0, 0))


def test_dynamic_shared_memory_has_bounds() -> None:
    out = np.zeros(32, np.float32)
    launch_fault("dynamic_bounds", pack_parameters(out, 0), {"out": out}, shared=128)
    with pytest.raises(OutOfBounds, match="shared memory buffer") as caught:
        launch_fault("dynamic_bounds", pack_parameters(out, 0), {"out": out}, shared=64)
    check_place(caught.value, "dynamic bounds", (16, 0, 0))


def test_local_memory_has_bounds() -> None:
    out, index = np.zeros(32, np.float32), np.arange(16, dtype=np.int32) % 8
    launch_fault("local_bounds", pack_parameters(out, index), {"out": out, "index": index})
    assert out[0] == 28
    index[3] = 8
    with pytest.raises(OutOfBounds, match="past the end of local memory") as caught:
        launch_fault("local_bounds", pack_parameters(out, index), {"out": out, "index": index})
    check_place(caught.value, "local bounds", (0, 0, 0))


# Uninitialized memory


def test_shared_memory_that_nothing_wrote_is_found() -> None:
    out = np.zeros(64, np.float32)
    launch_fault("read_shared_uninitialized", pack_parameters(out, 32), {"out": out})
    with pytest.raises(UninitializedMemory, match="read uninitialized memory") as caught:
        launch_fault("read_shared_uninitialized", pack_parameters(out, 20), {"out": out})
    check_place(caught.value, "shared uninitialized", (20, 0, 0))
    quiet = ExecutorChecks(uninitialized=False)
    launch_fault("read_shared_uninitialized", pack_parameters(out, 20), {"out": out}, checks=quiet)


def test_an_address_of_32_bits_may_begin_below_its_variable() -> None:
    """The compiler counts a loop over shared memory from one step before its start."""
    text = (
        f"{HEAD}.shared .align 16 .b8 one[16];\n.visible .entry k(.param .u64 k_param_0)\n{{\n"
        ".reg .b32 %r<4>; .reg .b64 %rd<4>;\n"
        "ld.param.u64 %rd1, [k_param_0]; mov.u32 %r1, one; add.s32 %r1, %r1, -512;\n"
        "mov.u32 %r2, 7; st.shared.u32 [%r1+524], %r2; ld.shared.u32 %r3, [%r1+524];\n"
        "st.global.u32 [%rd1], %r3; ret;\n}\n"
    )
    out = np.zeros(1, np.uint32)
    assert launch_text(text, pack_parameters(out), {"out": out}) == []
    assert out[0] == 7
    [report] = launch_text(text.replace("524", "528"), pack_parameters(out), {"out": out})
    assert isinstance(report, OutOfBounds)


@pytest.mark.parametrize(
    ("use", "found"),
    [
        ("and.b16 %rs6, %rs1, 255; cvt.u32.u16 %r1, %rs6;", 0),
        ("cvt.u32.u8 %r1, %rs1;", 0),
        ("cvt.u32.u16 %r1, %rs1;", 1),
        ("and.b16 %rs6, %rs1, 255; add.u16 %rs6, %rs6, %rs3; cvt.u32.u16 %r1, %rs6;", 1),
    ],
    ids=["low-byte", "as-a-byte", "both-bytes", "another-element"],
)
def test_padding_of_a_struct_that_is_loaded_as_a_whole_is_not_read(use: str, found: int) -> None:
    text = (
        f"{HEAD}.shared .align 16 .b8 one[16];\n.visible .entry k(.param .u64 k_param_0)\n{{\n"
        ".reg .b16 %rs<8>; .reg .b32 %r<4>; .reg .b64 %rd<4>;\n"
        "ld.param.u64 %rd1, [k_param_0]; mov.u16 %rs5, 1; st.shared.u8 [one+8], %rs5;\n"
        "ld.shared.v4.u16 {%rs1, %rs2, %rs3, %rs4}, [one+8];\n"
        f"{use} st.global.u32 [%rd1], %r1; ret;\n}}\n"
    )
    out = np.zeros(1, np.uint32)
    reports = launch_text(text, pack_parameters(out), {"out": out})
    assert [type(report) for report in reports] == [UninitializedMemory] * found
    assert found or out[0] == 1


@pytest.mark.parametrize(
    ("use", "mask"), [("", 15), ("and.b32 %r2, %r1, 511;", 3), ("add.u32 %r2, %r1, 1;", 15)]
)
def test_of_a_load_of_which_nothing_is_used_all_bytes_count(use: str, mask: int) -> None:
    text = (
        f"{HEAD}.visible .entry k(.param .u64 k_param_0)\n{{\n.reg .b32 %r<3>; .reg .b64 %rd<2>;\n"
        f"ld.param.u64 %rd1, [k_param_0]; ld.global.u32 %r1, [%rd1]; {use} ret;\n}}\n"
    )
    module = PtxText(text)
    graph = read_kernel(module, module.read_kernel("k"))
    [load] = [
        operation
        for operation in graph.walk()
        if operation.name == "ptx.ld" and "global" in operation.attributes["modifiers"]
    ]
    assert UsedBytes(graph).find_mask(Instruction(load), 4) == mask


def test_uninitialized_elements_of_a_tensor_are_found_until_they_are_written() -> None:
    parameters, tensors = make_rows()
    empty = np.zeros(256, np.uint8)
    empty[20:24] = 1
    fields = {"uninitialized": int(empty.ctypes.data)}
    with pytest.raises(UninitializedMemory, match="values, index 5") as caught:
        launch_fault("read_row", parameters, tensors, fields={"values": fields})
    check_place(caught.value, "read", (5, 0, 0))
    launch_fault("write_row", parameters, tensors, grid=(2, 1, 1), fields={"out": fields})
    assert not empty.any()


# Barriers, alignment, assertions, launches


def test_lanes_of_a_warp_at_different_barriers_are_found() -> None:
    out = np.zeros(32, np.float32)
    launch_fault("divergent_barrier", pack_parameters(out, 32), {"out": out})
    with pytest.raises(BarrierDivergence, match="wait at different barriers") as caught:
        launch_fault("divergent_barrier", pack_parameters(out, 16), {"out": out})
    assert caught.value.location is not None
    assert caught.value.location.thread == (16, 0, 0)
    assert caught.value.location.line == line_of("FAULT divergent")


def test_threads_that_wait_in_vain_are_found() -> None:
    out = np.zeros(64, np.float32)
    with pytest.raises(BarrierDivergence, match="threads wait in vain") as caught:
        launch_fault("waits_in_vain", pack_parameters(out), {"out": out}, block=(64, 1, 1))
    check_place(caught.value, "in vain", (0, 0, 0))


def test_a_misaligned_vector_access_is_found() -> None:
    out, values = np.zeros(128, np.float32), np.arange(160, dtype=np.float32)
    aligned = -int(values.ctypes.data) % 16 // 4
    values = values[aligned : aligned + 144]
    out_start = -int(out.ctypes.data) % 16
    assert out_start == 0
    tensors = {"out": out, "values": values}
    launch_fault("misaligned", pack_parameters(out, values, 4), tensors)
    with pytest.raises(MisalignedAccess, match="4 bytes past a multiple of 16: values") as caught:
        launch_fault("misaligned", pack_parameters(out, values, 1), tensors)
    check_place(caught.value, "misaligned", (0, 0, 0))


def test_a_trap_is_found() -> None:
    index = np.arange(32, dtype=np.int32)
    launch_fault("stops", pack_parameters(index), {"index": index})
    index[7] = -1
    with pytest.raises(KernelAssertion, match="trap") as caught:
        launch_fault("stops", pack_parameters(index), {"index": index})
    check_place(caught.value, "trap", (7, 0, 0))


@pytest.mark.parametrize(
    ("entry", "options", "words"),
    [
        ("threads_write_same", {"block": (2048, 1, 1)}, "a block of"),
        ("threads_write_same", {"block": (32, 32, 2)}, "2048 threads in a block"),
        ("threads_write_same", {"grid": (1, 65536, 1)}, "a grid of"),
        ("threads_write_same", {"grid": (0, 1, 1)}, "a grid of"),
        ("at_most_64", {"block": (96, 1, 1)}, "96 threads in a block, and at most 64"),
        ("uses_shared", {"shared": 16385}, "16385 bytes of .* its own 32768, .* limit is 16384"),
        ("uses_shared", {"shared": 65537, "max_shared_bytes": 65536}, "its limit is 65536"),
    ],
)
def test_a_launch_that_cuda_refuses_is_refused(
    entry: str, options: dict[str, Any], words: str
) -> None:
    out = np.zeros(64, np.float32)
    with pytest.raises(LaunchRefused, match=words):
        launch_fault(entry, pack_parameters(out), {"out": out}, **options)


def test_a_raised_limit_is_that_of_dynamic_shared_memory_alone() -> None:
    out = np.zeros(64, np.float32)
    for shared, limit in ((16384, 0), (40960, 40960), (65536, 65536)):
        launch_fault(
            "uses_shared", pack_parameters(out), {"out": out}, shared=shared, max_shared_bytes=limit
        )


def test_an_instruction_that_is_not_specified_is_refused_by_name() -> None:
    text = (
        ".version 9.0\n.target sm_90a\n.address_size 64\n.visible .entry k()\n{\n"
        ".reg .b32 %r<2>;\nvset4.u32.u32.eq %r1, %r1, %r1, %r1;\nret;\n}\n"
    )
    with pytest.raises(UncheckableKernel, match="not checked: vset4"):
        launch_text(text, b"", {})
