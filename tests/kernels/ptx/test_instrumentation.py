"""Checks written into PTX: what they report, and that they change nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from instrumented_kernels import instrument_text, launch_with_checks
from ptx_kernels import HEAD, describe_array, launch_text, pack_parameters
from test_faults import TEXT, check_place, make_rows

from harness.kernels.check.violations import IntegerOverflow, OutOfBounds
from harness.kernels.ptx import instrumentation
from harness.kernels.ptx.check_values import make_checked_parameters
from harness.kernels.ptx.parser import PtxKernel, PtxText
from harness.kernels.ptx.pointer_roots import UNKNOWN
from harness.kernels.ptx.statement_spans import iterate_statement_spans

_ROW_KERNELS = ("read_row", "write_row", "update_row")


@pytest.mark.parametrize("entry", _ROW_KERNELS)
def test_a_kernel_with_checks_computes_the_same_bits(entry: str) -> None:
    plain_parameters, plain = make_rows()
    assert launch_text(TEXT, plain_parameters, plain, block=(64, 1, 1), entry=entry) == []
    parameters, checked = make_rows()
    assert launch_with_checks(TEXT, entry, parameters, checked, block=(64, 1, 1)) == []
    for name, array in plain.items():
        assert array.tobytes() == checked[name].tobytes()


@pytest.mark.parametrize(
    ("entry", "marker", "words"),
    [
        ("read_row", "read", "read 4 bytes past the end of values (its index 64"),
        ("write_row", "write", "wrote 4 bytes past the end of out (its index 64"),
        ("update_row", "update", "updated 4 bytes past the end of out (its index 64"),
    ],
)
def test_an_access_past_the_end_is_reported_and_skipped(
    entry: str, marker: str, words: str
) -> None:
    parameters, tensors = make_rows(index=[3, 64])
    [error] = launch_with_checks(TEXT, entry, parameters, tensors, block=(64, 1, 1))
    assert isinstance(error, OutOfBounds)
    assert words in str(error)
    check_place(error, marker, (41, 0, 0))


def test_the_first_byte_behind_a_tensor_is_outside() -> None:
    out = np.zeros(16, np.uint8)
    for offset, expected in ((14, 0), (15, 1)):
        text = _make_kernel(f"st.global.u8 [%rd1+{offset}], 1;")
        tensors = {"out": out[:15]}
        assert (
            len(launch_with_checks(text, "k", pack_parameters(out), tensors, block=(1, 1, 1)))
            == expected
        )


def test_an_access_before_the_start_is_reported() -> None:
    parameters, tensors = make_rows(index=[-1])
    [error] = launch_with_checks(TEXT, "read_row", parameters, tensors, block=(64, 1, 1))
    assert "read 4 bytes before the start of values" in str(error)


def test_a_report_names_block_and_thread() -> None:
    text = _make_kernel(
        "mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %ctaid.y;"
        "mad.lo.u32 %r1, %r2, 4, %r1; mad.lo.u32 %r1, %r3, 8, %r1;"
        "mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2; st.global.u32 [%rd3], %r1;"
    )
    out = np.zeros(15, np.uint32)
    [error] = launch_with_checks(
        text, "k", pack_parameters(out), {"out": out}, (1, 2, 1), (4, 2, 1)
    )
    assert error.location is not None
    assert (error.location.program, error.location.thread) == ((0, 1, 0), (3, 1, 0))


@pytest.mark.parametrize(
    ("entry", "marker", "row", "stride", "true"),
    [
        ("overflow_product", "signed product", 1 << 20, 1 << 12, 1 << 32),
        ("overflow_unsigned", "unsigned product", 1 << 20, 1 << 13, 1 << 33),
        ("overflow_shift", "shift", 1 << 12, 0, 1 << 32),
    ],
)
def test_an_overflow_on_its_way_into_an_address_is_reported(
    entry: str, marker: str, row: int, stride: int, true: int
) -> None:
    out = np.zeros(64, np.float32)
    errors = launch_with_checks(TEXT, entry, pack_parameters(out, row | stride << 32), {"out": out})
    assert isinstance(errors[0], IntegerOverflow)
    assert f"{true} became 0 in 32 bits" in str(errors[0])
    check_place(errors[0], marker, (0, 0, 0))
    assert launch_with_checks(TEXT, entry, pack_parameters(out, 0), {"out": out}) == []
    plain = pack_parameters(out, row | stride << 32)
    assert launch_with_checks(TEXT, entry, plain, {"out": out}, checks=("bounds",)) == []


def test_an_index_that_32_bits_do_not_hold_is_reported() -> None:
    out, index = np.zeros(64, np.float32), np.arange(32)
    tensors = {"out": out, "index": index}
    assert (
        launch_with_checks(TEXT, "overflow_narrowing", pack_parameters(out, index), tensors) == []
    )
    index[9] = 1 << 32
    [error] = launch_with_checks(TEXT, "overflow_narrowing", pack_parameters(out, index), tensors)
    assert "4294967296 became 0" in str(error)
    check_place(error, "narrowing", (9, 0, 0))


def test_a_difference_that_a_sum_undoes_is_no_overflow() -> None:
    out = np.zeros(64, np.float32)
    tensors = {"out": out}
    assert (
        launch_with_checks(TEXT, "wraps_and_returns", pack_parameters(out, 3 | 5 << 32), tensors)
        == []
    )
    assert out[3] == 1


def test_a_difference_less_one_is_computed_with_a_complement_and_no_overflow() -> None:
    """nvcc makes `end - start - 1` of unsigned numbers `end + ~start`."""
    body = (
        "ld.global.u32 %r1, [%rd1]; ld.global.u32 %r2, [%rd1+4]; not.b32 %r3, %r1;"
        "add.s32 %r4, %r2, %r3; mul.wide.u32 %rd2, %r4, 4; add.s64 %rd3, %rd1, %rd2;"
        "st.global.u32 [%rd3], 7;"
    )
    for start, end, expected in ((3, 9, 5), (0, 9, 8)):
        out = np.zeros(16, np.uint32)
        out[:2] = start, end
        one = (1, 1, 1)
        text = _make_kernel(body)
        assert launch_with_checks(text, "k", pack_parameters(out), {"out": out}, block=one) == []
        assert out[expected] == 7
        assert launch_text(text, pack_parameters(out), {"out": out}) == []
    out[:2] = 9, 9
    [error] = launch_with_checks(text, "k", pack_parameters(out), {"out": out}, block=one)
    assert isinstance(error, IntegerOverflow), error
    assert "-1 became 4294967295" in str(launch_text(text, pack_parameters(out), {"out": out})[0])


@pytest.mark.parametrize(("step", "found"), [(512, 0), (256, 1)])
def test_a_loop_that_begins_one_step_early_overflows_only_if_it_stays_below(
    step: int, found: int
) -> None:
    """The compiler makes `k - 512` of an unsigned k below 512 `k | -512`, and adds 512 first."""
    body = (
        "ld.global.u32 %r1, [%rd1]; and.b32 %r2, %r1, 15; or.b32 %r3, %r2, -512;"
        f"add.s32 %r4, %r3, {step}; mul.wide.u32 %rd2, %r4, 4; add.s64 %rd3, %rd1, %rd2;"
        "st.global.u32 [%rd3], 7;"
    )
    out = np.zeros(16, np.uint32)
    text = _make_kernel(body)
    reports = launch_with_checks(text, "k", pack_parameters(out), {"out": out}, block=(1, 1, 1))
    overflows = [report for report in reports if "overflows" in str(report)]
    assert len(overflows) == found
    out[0] = 0
    reports = launch_text(text, pack_parameters(out), {"out": out})
    assert [str(report).count("-256 became 4294967040") for report in reports] == [1] * found


@pytest.mark.parametrize(
    ("make", "found"),
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
    make: str, found: int
) -> None:
    """Of `unsigned(x | 0xFFFFFE00) + 512` the wrap is reported, unless x is below 512."""
    body = (
        f"ld.global.u32 %r1, [%rd1]; {make} or.b32 %r3, %r2, -512;"
        "add.s32 %r4, %r3, 512; mul.wide.u32 %rd2, %r4, 4; add.s64 %rd3, %rd1, %rd2;"
        "st.global.u32 [%rd3], 7;"
    )
    out = np.zeros(16, np.uint32)
    text = _make_kernel(body)
    reports = launch_with_checks(text, "k", pack_parameters(out), {"out": out}, block=(1, 1, 1))
    assert [isinstance(report, IntegerOverflow) for report in reports] == [True] * found
    out[0] = 0
    reports = launch_text(text, pack_parameters(out), {"out": out})
    assert [isinstance(report, IntegerOverflow) for report in reports] == [True] * found


def test_the_threads_of_a_kernel_bound_its_differences() -> None:
    body = (
        "mov.u32 %r1, %tid.x; or.b32 %r3, %r1, -512;"
        "add.s32 %r4, %r3, 512; mul.wide.u32 %rd2, %r4, 4; add.s64 %rd3, %rd1, %rd2;"
        "st.global.u32 [%rd3], 7;"
    )
    out, one = np.zeros(16, np.uint32), (1, 1, 1)
    for limit, found in ((512, 0), (513, 1)):
        text = _make_kernel(body).replace("{", f".maxntid {limit}, 1, 1\n{{", 1)
        assert (
            len(launch_with_checks(text, "k", pack_parameters(out), {"out": out}, block=one))
            == found
        )


@pytest.mark.parametrize("use", ["shr.u32 %r4, %r3, 28;", "min.u32 %r4, %r3, 15;"])
def test_the_complement_of_a_key_is_its_bits_and_no_overflow(use: str) -> None:
    """A radix sort of descending keys takes its bins from the bits of `~key`."""
    body = (
        f"ld.global.u32 %r1, [%rd1]; not.b32 %r3, %r1; {use}"
        "mul.wide.u32 %rd2, %r4, 4; add.s64 %rd3, %rd1, %rd2; st.global.u32 [%rd3], 7;"
    )
    out = np.zeros(16, np.uint32)
    text = _make_kernel(body)
    assert launch_with_checks(text, "k", pack_parameters(out), {"out": out}, block=(1, 1, 1)) == []
    assert out[15] == 7
    assert launch_text(text, pack_parameters(out), {"out": out}) == []


def test_a_predicated_access_counts_where_it_happens() -> None:
    body = (
        "mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2;"
        "setp.lt.u32 %p1, %r1, {limit}; {guard} st.global.u32 [%rd3], %r1;"
    )
    out = np.zeros(16, np.uint32)
    for guard, limit, expected in (("@%p1", 16, 0), ("@%p1", 17, 1), ("@!%p1", 16, 4)):
        text = _make_kernel(body.format(guard=guard, limit=limit))
        assert len(launch_with_checks(text, "k", pack_parameters(out), {"out": out})) == expected


def test_the_access_of_an_inner_scope_is_checked() -> None:
    text = _make_kernel("{ .reg .b64 %q; add.s64 %q, %rd1, 64; st.global.u32 [%q], 1; }")
    out = np.zeros(16, np.uint32)
    [error] = launch_with_checks(text, "k", pack_parameters(out), {"out": out}, block=(1, 1, 1))
    assert "wrote 4 bytes past the end of out" in str(error)
    larger = np.zeros(17, np.uint32)
    assert (
        launch_with_checks(text, "k", pack_parameters(larger), {"out": larger}, block=(1, 1, 1))
        == []
    )


def test_a_result_that_was_not_loaded_is_zero() -> None:
    text = _make_kernel("mov.u32 %r1, 5; ld.global.u32 %r1, [%rd1+64]; st.global.u32 [%rd1], %r1;")
    out = np.full(16, 9, np.uint32)
    assert (
        len(launch_with_checks(text, "k", pack_parameters(out), {"out": out}, block=(1, 1, 1))) == 1
    )
    assert out[0] == 0


def test_a_pointer_that_one_of_two_parameters_may_be_is_inside_of_either() -> None:
    one, other = np.zeros(8, np.uint32), np.zeros(8, np.uint32)
    text = _make_kernel(
        "ld.param.u64 %rd2, [k_param_1]; mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 16;"
        "selp.b64 %rd3, %rd1, %rd2, %p1; and.b32 %r2, %r1, 15; mul.wide.u32 %rd4, %r2, 4;"
        "add.s64 %rd5, %rd3, %rd4; st.global.u32 [%rd5], %r1;",
        parameters=2,
    )
    tensors = {"one": one, "other": other}
    assert (
        launch_with_checks(text, "k", pack_parameters(one, other), tensors, block=(8, 1, 1)) == []
    )
    assert one[7] == 7
    errors = launch_with_checks(text, "k", pack_parameters(one, other), tensors, block=(24, 1, 1))
    assert {type(error) for error in errors} == {OutOfBounds}
    assert other[7] == 23


def test_a_stride_that_is_added_to_a_pointer_is_no_pointer() -> None:
    text = _make_kernel(
        "ld.param.u64 %rd2, [k_param_1]; add.s64 %rd3, %rd1, %rd2; st.global.u32 [%rd3], 1;",
        parameters=2,
    )
    out = np.zeros(16, np.uint32)
    assert (
        launch_with_checks(text, "k", pack_parameters(out, 60), {"out": out}, block=(1, 1, 1)) == []
    )
    assert (
        len(launch_with_checks(text, "k", pack_parameters(out, 64), {"out": out}, block=(1, 1, 1)))
        == 1
    )


def test_a_pointer_from_memory_is_left_unchecked_and_counted() -> None:
    text = _make_kernel("ld.global.u64 %rd2, [%rd1]; st.global.u32 [%rd2], 1;")
    kernel = instrument_text(text).kernels["k"]
    assert len(kernel.sites) == 1
    assert kernel.unchecked == {"it was loaded from memory": 1}


def test_a_launch_without_a_report_table_runs_as_it_would() -> None:
    text = _make_kernel("st.global.u32 [%rd1+32], 3;")
    out = np.zeros(16, np.uint32)
    half = {"out": out[:8]}
    with pytest.raises(OutOfBounds, match="its index 8"):  # the executor's own check
        launch_with_checks(text, "k", pack_parameters(out), half, block=(1, 1, 1), has_table=False)


def test_a_pointer_into_no_known_memory_has_no_end() -> None:
    kernel = instrument_text(_make_kernel("st.global.u32 [%rd1], 3;")).kernels["k"]
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


def _make_kernel(body: str, parameters: int = 1) -> str:
    listed = ", ".join(f".param .u64 k_param_{place}" for place in range(parameters))
    return (
        f"{HEAD}.visible .entry k({listed})\n{{\n.reg .pred %p<3>;\n.reg .b32 %r<6>;\n"
        f".reg .b64 %rd<8>;\nld.param.u64 %rd1, [k_param_0];\n{body}\nret;\n}}\n"
    )


def test_a_kernel_that_cannot_be_rewritten_leaves_the_others_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = _make_kernel("st.global.u32 [%rd1], 1;")
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


def test_overflow_alone_reports_no_bounds() -> None:
    text = _make_kernel("st.global.u32 [%rd1+64], 1;")
    assert instrument_text(text, ("overflow",)).kernels["k"].sites == []
    out = np.zeros(64, np.float32)
    errors = launch_with_checks(
        TEXT,
        "overflow_product",
        pack_parameters(out, 1 << 20 | 1 << 44),
        {"out": out},
        checks=("overflow",),
    )
    assert isinstance(errors[0], IntegerOverflow)
    kernel = instrument_text(TEXT, ("overflow",)).kernels["overflow_product"]
    assert kernel.sites
    assert kernel.entries == []


def test_a_pointer_that_nobody_knows_unbounds_all_accesses_of_it() -> None:
    text = _make_kernel(
        "ld.param.u64 %rd2, [k_param_1]; mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 16;"
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
    kernel = instrument_text(_make_kernel(f"@%p1 {writer} st.global.u32 [%rd1], 1;")).kernels["k"]
    assert kernel.sites == []
    assert kernel.unchecked == {UNKNOWN: 1}
