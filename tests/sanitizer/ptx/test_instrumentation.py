"""Checks written into PTX: what they report, and that they change nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from instrumented_kernels import instrument_text, launch_with_checks
from planted_faults import TEXT, make_rows
from ptx_kernels import HEAD, describe_array, launch_text, make_kernel, pack_parameters

from harness.sanitizer.ptx import instrumentation
from harness.sanitizer.ptx.check_values import make_checked_parameters
from harness.sanitizer.ptx.module_text import PtxText
from harness.sanitizer.ptx.parser import PtxKernel
from harness.sanitizer.ptx.pointer_roots import UNKNOWN
from harness.sanitizer.ptx.statement_spans import iterate_statement_spans
from harness.sanitizer.violations.exceptions import OutOfBounds, UncheckableKernel

_ROW_KERNELS = ("read_row", "write_row", "update_row")


@pytest.mark.parametrize("entry", _ROW_KERNELS)
def test_a_kernel_with_checks_computes_the_same_bits(entry: str) -> None:
    plain_parameters, plain = make_rows()
    assert launch_text(TEXT, plain_parameters, plain, block=(64, 1, 1), entry=entry) == []
    parameters, checked = make_rows()
    assert launch_with_checks(TEXT, parameters, checked, block=(64, 1, 1), entry=entry) == []
    for name, array in plain.items():
        assert array.tobytes() == checked[name].tobytes()


def test_the_first_byte_behind_a_tensor_is_outside() -> None:
    out = np.zeros(16, np.uint8)
    for offset, expected in ((14, 0), (15, 1)):
        text = make_kernel(f"st.global.u8 [%rd1+{offset}], 1;")
        tensors = {"out": out[:15]}
        assert len(launch_with_checks(text, pack_parameters(out), tensors)) == expected


def test_a_report_names_block_and_thread() -> None:
    text = make_kernel(
        "mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %ctaid.y;"
        "mad.lo.u32 %r1, %r2, 4, %r1; mad.lo.u32 %r1, %r3, 8, %r1;"
        "mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2; st.global.u32 [%rd3], %r1;"
    )
    out = np.zeros(15, np.uint32)
    [error] = launch_with_checks(text, pack_parameters(out), {"out": out}, (1, 2, 1), (4, 2, 1))
    assert error.location is not None
    assert (error.location.program, error.location.thread) == ((0, 1, 0), (3, 1, 0))


def test_a_predicated_access_counts_where_it_happens() -> None:
    body = (
        "mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2;"
        "setp.lt.u32 %p1, %r1, {limit}; {guard} st.global.u32 [%rd3], %r1;"
    )
    out = np.zeros(16, np.uint32)
    for guard, limit, expected in (("@%p1", 16, 0), ("@%p1", 17, 1), ("@!%p1", 16, 4)):
        text = make_kernel(body.format(guard=guard, limit=limit))
        tensors = {"out": out}
        found = launch_with_checks(text, pack_parameters(out), tensors, block=(32, 1, 1))
        assert len(found) == expected


def test_the_access_of_an_inner_scope_is_checked() -> None:
    text = make_kernel("{ .reg .b64 %q; add.s64 %q, %rd1, 64; st.global.u32 [%q], 1; }")
    out = np.zeros(16, np.uint32)
    [error] = launch_with_checks(text, pack_parameters(out), {"out": out})
    assert "wrote 4 bytes past the end of out" in str(error)
    larger = np.zeros(17, np.uint32)
    assert launch_with_checks(text, pack_parameters(larger), {"out": larger}) == []


def test_a_result_that_was_not_loaded_is_zero() -> None:
    text = make_kernel("mov.u32 %r1, 5; ld.global.u32 %r1, [%rd1+64]; st.global.u32 [%rd1], %r1;")
    out = np.full(16, 9, np.uint32)
    assert len(launch_with_checks(text, pack_parameters(out), {"out": out})) == 1
    assert out[0] == 0


def test_a_pointer_that_one_of_two_parameters_may_be_is_inside_of_either() -> None:
    one, other = np.zeros(8, np.uint32), np.zeros(8, np.uint32)
    text = make_kernel(
        "mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 16;"
        "selp.b64 %rd3, %rd1, %rd2, %p1; and.b32 %r2, %r1, 15; mul.wide.u32 %rd4, %r2, 4;"
        "add.s64 %rd5, %rd3, %rd4; st.global.u32 [%rd5], %r1;",
        parameters=2,
    )
    tensors = {"one": one, "other": other}
    assert launch_with_checks(text, pack_parameters(one, other), tensors, block=(8, 1, 1)) == []
    assert one[7] == 7
    errors = launch_with_checks(text, pack_parameters(one, other), tensors, block=(24, 1, 1))
    assert {type(error) for error in errors} == {OutOfBounds}
    assert other[7] == 23


def test_a_stride_that_is_added_to_a_pointer_is_no_pointer() -> None:
    text = make_kernel(
        "add.s64 %rd3, %rd1, %rd2; st.global.u32 [%rd3], 1;",
        parameters=2,
    )
    out = np.zeros(16, np.uint32)
    assert launch_with_checks(text, pack_parameters(out, 60), {"out": out}) == []
    assert len(launch_with_checks(text, pack_parameters(out, 64), {"out": out})) == 1


def test_a_pointer_from_memory_is_left_unchecked_and_counted() -> None:
    text = make_kernel("ld.global.u64 %rd2, [%rd1]; st.global.u32 [%rd2], 1;")
    kernel = instrument_text(text).kernels["k"]
    assert len(kernel.sites) == 1
    assert kernel.unchecked == {"it was loaded from memory": 1}


def test_a_launch_without_a_report_table_runs_as_it_would() -> None:
    text = make_kernel("st.global.u32 [%rd1+32], 3;")
    out = np.zeros(16, np.uint32)
    half = {"out": out[:8]}
    with pytest.raises(OutOfBounds, match="its index 8"):  # the executor's own check
        launch_with_checks(text, pack_parameters(out), half, has_table=False)


def test_a_pointer_into_no_known_memory_has_no_end() -> None:
    kernel = instrument_text(make_kernel("st.global.u32 [%rd1], 3;")).kernels["k"]
    checked = make_checked_parameters(kernel, pack_parameters(1 << 40), (), lambda _: None, 0, 0)
    assert checked.unbounded_roots == ((0,),)


def test_every_statement_of_a_kernel_has_its_place_in_the_text() -> None:
    module = PtxText(TEXT)
    for name, head in module.heads.items():
        _, start, end = head.positions
        body = TEXT[start:end]
        words = [body[one.start : one.end] for one in iterate_statement_spans(body)]
        for text, statement in zip(words, module.read_kernel(name).statements, strict=True):
            assert statement.opcode in text


def test_a_kernel_that_cannot_be_rewritten_leaves_the_others_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = make_kernel("st.global.u32 [%rd1], 1;")
    two = text + text.removeprefix(HEAD).replace("entry k", "entry other")
    table = instrumentation.PointerRootTable

    def make_table(module: PtxText, kernel: PtxKernel) -> object:
        if kernel.name == "k":
            raise KeyError("%rd9")
        return table(module, kernel)

    monkeypatch.setattr(instrumentation, "PointerRootTable", make_table)
    kernels = instrumentation.instrument_module(two, ("bounds",)).kernels
    assert kernels["k"].refusal == "its PTX is not understood: KeyError('%rd9')"
    assert (kernels["other"].refusal, len(kernels["other"].sites)) == ("", 1)


def test_a_body_that_is_not_understood_leaves_the_other_kernels_to_run_under_check() -> None:
    text = make_kernel(".nothing 1;")
    text += (
        make_kernel("st.global.u32 [%rd1], 7;").removeprefix(HEAD).replace("entry k", "entry other")
    )
    kernels = instrument_text(text).kernels
    assert kernels["k"].refusal == "its PTX is not understood: the directive .nothing 1"
    out = np.zeros(1, np.uint32)
    launches: tuple[Callable[..., list[Any]], ...] = (launch_text, launch_with_checks)
    for launch in launches:
        assert launch(text, pack_parameters(out), {"out": out}, entry="other") == []
        assert out.tolist() == [7]
        out[0] = 0
    with pytest.raises(UncheckableKernel, match=r"not checked: the directive \.nothing 1"):
        launch_text(text, pack_parameters(out), {"out": out}, entry="k")


def test_a_pointer_that_nobody_knows_unbounds_all_accesses_of_it() -> None:
    text = make_kernel(
        "mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 16;"
        "selp.b64 %rd3, %rd1, %rd2, %p1; st.global.u32 [%rd3], %r1;",
        parameters=2,
    )
    out = np.zeros(8, np.uint32)
    kernel, known = instrument_text(text).kernels["k"], (describe_array("out", out),)
    for other, unbounded in ((1 << 40, ((0, 8),)), (60, ())):
        packed = pack_parameters(out, other)
        checked = make_checked_parameters(kernel, packed, known, lambda _: None, 0, 0)
        assert checked.unbounded_roots == unbounded


@pytest.mark.parametrize("writer", ["mov.b64 %rd1, {%r1, %r2};", "shl.b64 %rd1, %rd2, 3;"])
def test_a_register_that_an_unknown_number_is_written_to_is_left_unchecked(writer: str) -> None:
    kernel = instrument_text(make_kernel(f"@%p1 {writer} st.global.u32 [%rd1], 1;")).kernels["k"]
    assert kernel.sites == []
    assert kernel.unchecked == {UNKNOWN: 1}
