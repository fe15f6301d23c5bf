"""Tensor cores: `mma.sync`, `ldmatrix`, `stmatrix` against exact sums, and their reports.

No card has been asked: the references are the formulas of the PTX ISA and exact sums.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matrix_fragments import (
    FORMS,
    Form,
    decode_numbers,
    encode_numbers,
    multiply_fragments,
    run_rows,
    split_left,
    write_kernel,
    write_product,
)
from ptx_kernels import pack_parameters, run_text

from harness.sanitizer.ptx.launch import ExecutorChecks
from harness.sanitizer.violations.exceptions import (
    BarrierDivergence,
    DataRace,
    MisalignedAccess,
    OutOfBounds,
    UncheckableKernel,
)

RANDOM = np.random.default_rng(11)
BF16 = Form(16, "bf16", "bf16", "f32")


def draw_matrix(shape: tuple[int, int], kind: str) -> Any:
    if kind in ("s8", "u8"):
        low, high = (-128, 128) if kind == "s8" else (0, 256)
        return encode_numbers(RANDOM.integers(low, high, shape), kind)
    if kind == "s32":
        return encode_numbers(RANDOM.integers(-(2**20), 2**20, shape), kind)
    return encode_numbers(RANDOM.normal(size=shape) * 2.0 ** RANDOM.integers(-4, 5, shape), kind)


def draw_product(form: Form) -> tuple[Any, Any, Any, Any]:
    """Return the bits of A, B and C, and the exact D."""
    shapes = (16, form.depth), (form.depth, 8), (16, 8)
    kinds = form.left, form.right, form.sum
    bits = [draw_matrix(shape, kind) for shape, kind in zip(shapes, kinds, strict=True)]
    left, right, start = (decode_numbers(one, kind) for one, kind in zip(bits, kinds, strict=True))
    return *bits, left @ right + start


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_a_product_is_the_exact_one_rounded(form: Form) -> None:
    for _ in range(4):
        left, right, start, exact = draw_product(form)
        found = decode_numbers(
            multiply_fragments(form, split_left(left, form), right, start), form.sum
        )
        if form.sum == "s32":
            assert np.array_equal(found, exact)
        else:
            kind = np.float16 if form.sum == "f16" else np.float32
            assert np.all(np.abs(found - exact) <= np.spacing(np.abs(exact.astype(kind))))


def test_a_fragment_in_the_wrong_register_is_another_product() -> None:
    left, right, start, exact = draw_product(BF16)
    words = split_left(left, BF16)[[0, 2, 1, 3]]
    found = decode_numbers(multiply_fragments(BF16, words, right, start), "f32")
    assert np.abs(found - exact).max() > 1


def test_sums_of_integers_wrap_around_or_stop_at_the_largest() -> None:
    left = np.full((16, 32), 127, np.uint8)
    right = np.full((32, 8), 127, np.uint8)
    start = encode_numbers(np.full((16, 8), 2**31 - 5), "s32")
    for words, wanted in (("", 127 * 127 * 32 - 2**31 - 5), (".satfinite", 2**31 - 1)):
        form = Form(32, "s8", "s8", "s32", words)
        found = multiply_fragments(form, split_left(left, form), right, start)
        assert np.all(decode_numbers(found, "s32") == wanted)


def test_an_element_that_is_no_number_reaches_its_row_alone() -> None:
    left, right, start, _ = draw_product(BF16)
    left[5, 3] = 0x7FFF
    found = multiply_fragments(BF16, split_left(left, BF16), right, start)
    assert np.all(found[5] == 0x7FFFFFFF)
    assert not np.isnan(decode_numbers(np.delete(found, 5, 0), "f32")).any()


# Fragments in shared memory

ROW = "shl.b32 %r, %l, 4;"
ADD = "add.u32 %s, %s, %r;"
VECTOR = "{%x0, %x1, %x2, %x3}"
OWN = [f"ld.global.b32 %x{place}, [%a+{128 * place}];" for place in range(4)]
FILL = [*OWN, ROW, ADD, f"st.shared.v4.b32 [%s], {VECTOR};"]
KEEP = [f"st.global.b32 [%o+{128 * place}], %d{place};" for place in range(4)]
CLEAR = [f"mov.b32 %d{place}, 0;" for place in range(4)]
LOADED = {1: "{%d0}", 2: "{%d0, %d1}", 4: "{%d0, %d1, %d2, %d3}"}
GIVEN = {1: "{%x0}", 2: "{%x0, %x1}", 4: VECTOR}


def load_matrices(count: int = 4, trans: str = "") -> str:
    return f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {LOADED[count]}, [%s];"


def draw_words() -> Any:
    return RANDOM.integers(0, 2**32, (4, 32), dtype=np.uint32)


def list_rows(words: Any) -> Any:
    """Return 32 rows of 8 elements: lane l has written its four words as row l."""
    return np.ascontiguousarray(words.T).view(np.uint16).reshape(4, 8, 8)


@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_lane_loads_its_elements_of_each_matrix(count: int, trans: str) -> None:
    words = draw_words()
    found = run_rows([*FILL, *CLEAR, "bar.sync 0;", load_matrices(count, trans), *KEEP], words)
    check_fragments(words, found, count, trans)


def check_fragments(rows: Any, fragments: Any, count: int, trans: str) -> None:
    """Check that each lane's word of a matrix holds its two elements of one row of it."""
    for number, matrix in enumerate(list_rows(rows)[:count]):
        matrix = matrix.T if trans else matrix
        for lane in range(32):
            row, column = lane // 4, lane % 4 * 2
            low, high = int(matrix[row, column]), int(matrix[row, column + 1])
            assert fragments[number, lane] == low | high << 16


@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_stored_matrices_are_loaded_again(count: int, trans: str) -> None:
    words = draw_words()
    store = f"stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%s], {GIVEN[count]};"
    lines = [*OWN, ROW, ADD, store, *CLEAR, "bar.sync 0;", load_matrices(count, trans), *KEEP]
    found = run_rows(lines, words)
    assert np.array_equal(found[:count], words[:count])
    guard = "@%p " if count < 4 else ""
    loads = [f"setp.lt.u32 %p, %l, {8 if count == 1 else 16};"]
    loads += [f"{guard}ld.shared.b32 %d{place}, [%s+{4 * place}];" for place in range(4)]
    raw = run_rows([*OWN, ROW, ADD, store, *CLEAR, "bar.sync 0;", *loads, *KEEP], words)
    check_fragments(raw, words, count, trans)


def test_what_nobody_wrote_is_no_number_and_no_report() -> None:
    words = draw_words()
    partly = [*OWN, ROW, ADD, f"@%p st.shared.v4.b32 [%s], {VECTOR};", *CLEAR, "bar.sync 0;"]
    found = run_rows([*partly, load_matrices(), *KEEP], words, ExecutorChecks(uninitialized=True))
    assert np.all(found[2:] == 0x7FFF7FFF)
    whole = run_rows([*FILL, *CLEAR, "bar.sync 0;", load_matrices(), *KEEP], words)
    assert np.array_equal(found[:2], whole[:2])


@pytest.mark.parametrize("instruction", [load_matrices(), load_matrices(trans=".trans")])
def test_a_row_past_the_end_is_reported(instruction: str) -> None:
    lines = [*FILL, "add.u32 %s, %s, 16;", "bar.sync 0;", instruction, *KEEP]
    with pytest.raises(OutOfBounds, match="read 16 bytes past the end of shared memory tile") as e:
        run_rows(lines, draw_words())
    assert e.value.location is not None
    assert e.value.location.thread == (31, 0, 0)


def test_a_stored_row_past_the_end_is_reported() -> None:
    store = f"stmatrix.sync.aligned.m8n8.x4.shared.b16 [%s+16], {VECTOR};"
    with pytest.raises(OutOfBounds, match="wrote 16 bytes past the end of shared memory tile"):
        run_rows([*OWN, ROW, ADD, store], draw_words())


def test_a_row_at_an_odd_address_is_reported() -> None:
    lines = [
        *FILL,
        "mov.u32 %s, tile;",
        "add.u32 %s, %s, 8;",
        "bar.sync 0;",
        load_matrices(),
        *KEEP,
    ]
    with pytest.raises(MisalignedAccess, match="a multiple of 16"):
        run_rows(lines, draw_words())


def test_a_row_of_another_lane_without_an_order_is_a_race() -> None:
    lines = [*FILL, "xor.b32 %r, %r, 496;", "mov.u32 %s, tile;", ADD, load_matrices(), *KEEP]
    with pytest.raises(DataRace, match="without an order"):
        run_rows(lines, draw_words())
    run_rows([*lines[:-5], "bar.warp.sync -1;", *lines[-5:]], draw_words())


# Lanes that are missing, and forms that are refused


def run_product(text: str, threads: int = 32) -> None:
    words = np.zeros((10, 32), np.uint32)
    run_text(text, pack_parameters(words, words), {"values": words}, block=(threads, 1, 1))


def test_lanes_that_go_another_way_are_reported() -> None:
    with pytest.raises(BarrierDivergence, match=r"wait in vain \(mma.sync"):
        run_product(write_product(BF16.name, 4, 2, 4, "@%p ").replace(
            "st.global.b32 [%o+0]", "bar.sync 0;\nst.global.b32 [%o+0]"))  # fmt: skip


def test_lanes_that_have_exited_are_reported() -> None:
    text = write_product(BF16.name, 4, 2, 4).replace("mma.sync", "@%p exit;\nmma.sync")
    with pytest.raises(BarrierDivergence, match=r"mma\.sync.*needs all 32 lanes") as caught:
        run_product(text)
    assert str(list(range(16))) in str(caught.value)


def test_lanes_that_the_block_does_not_have_are_reported() -> None:
    with pytest.raises(BarrierDivergence, match="needs all 32 lanes"):
        run_product(write_product(BF16.name, 4, 2, 4), threads=24)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32", (2, 2, 8)),
        ("mma.sync.aligned.m16n8k32.row.col.s32.s4.s4.s32", (2, 1, 4)),
        ("mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.xor.popc", (4, 2, 4)),
        ("mma.sync.aligned.kind::f8f6f4.m16n8k32.row.col.f32.e2m1.e2m1.f32", (4, 2, 4)),
        ("mma.sp.sync.aligned.m16n8k32.row.col.f32.bf16.bf16.f32", (4, 4, 4)),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.bf16.f32", (4, 2, 4)),
    ],
)
def test_a_form_that_is_not_answered_is_refused_by_name(
    name: str, words: tuple[int, int, int]
) -> None:
    with pytest.raises(UncheckableKernel, match=name.replace(".", r"\.")):
        run_product(write_product(name, *words))


@pytest.mark.parametrize(
    "line",
    [
        "wgmma.fence.sync.aligned;",
        "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%x0, %x1}, [%s];",
        "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;",
    ],
)
def test_other_operations_of_tensor_cores_are_refused_by_name(line: str) -> None:
    name = line.split()[0].rstrip(";")
    with pytest.raises(UncheckableKernel, match=name.replace(".", r"\.")):
        run_product(write_kernel([line], ".reg .b32 %x<2>;"))
