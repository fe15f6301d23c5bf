"""Uninitialized shared memory, in products of types in which each word is a number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matrix_fragments import write_kernel
from ptx_kernels import pack_parameters, run_text

from harness.sanitizer.ptx.launch import ExecutorChecks
from harness.sanitizer.violations.exceptions import UninitializedMemory

D = "{%d0, %d1, %d2, %d3}"
X = "{%x0, %x1, %x2, %x3}"
# Lane l writes row l of a tile of 32 rows of 16 bytes: four matrices, 8 rows each. As factor A the
# first and the third are rows 0 to 7 of the product, the second and the fourth rows 8 to 15.
WRITE = [
    "shl.b32 %r, %l, 4;",
    "add.u32 %s, %s, %r;",
    *(f"mov.b32 %x{place}, 0x01010101;" for place in range(4)),
    *(f"mov.b32 %d{place}, 0;" for place in range(4)),
    "shr.u32 %r, %l, 3;",
    "WRITERS",
    f"@%p st.shared.v4.b32 [%s], {X};",
    "bar.sync 0;",
]
EVERY, UPPER = "setp.lt.u32 %p, %l, 32;", "and.b32 %r, %r, 1;\nsetp.eq.u32 %p, %r, 0;"
STORES = [f"st.global.b32 [%o+{128 * place}], %d{place};" for place in range(4)]
CHECKED = ExecutorChecks(uninitialized=True)
LOAD = f"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {D}, [%s];"
# Two words of a lane's sums go through shared memory.
PLACE = ["shl.b32 %r, %l, 3;", "bar.sync 0;", "mov.u32 %s, tile;", "add.u32 %s, %s, %r;"]
READ = "ld.shared.v2.b32 {%d0, %d1}, [%s];"


def write_product(kind: str) -> str:
    depth, total = (32, "s32") if kind in ("s8", "u8") else (8, "f32")
    name = f"mma.sync.aligned.m16n8k{depth}.row.col.{total}.{kind}.{kind}.{total}"
    return f"{name} {D}, {D}, {{%x0, %x1}}, {X};"


def run_lines(lines: list[str], writers: str, checks: ExecutorChecks = CHECKED) -> Any:
    """Run a kernel in which some lanes write their rows; return its output or raise its report."""
    out = np.zeros((4, 32), np.uint32)
    text = "\n".join([*WRITE, *lines]).replace("WRITERS", writers)
    kernel = write_kernel(text.splitlines(), ".reg .b32 %x<4>;\n.reg .b32 %d<4>;")
    run_text(kernel, pack_parameters(out, out), {"out": out}, block=(32, 1, 1), checks=checks)
    return out


@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("kind", ["s8", "u8", "tf32"])
def test_a_product_of_what_nobody_wrote_is_reported_where_it_is_stored(
    kind: str, trans: str
) -> None:
    lines = [LOAD.replace(".x4", f".x4{trans}"), write_product(kind), *STORES]
    with pytest.raises(UninitializedMemory, match=r"wrote out, index 64, which depends on uninit"):
        run_lines(lines, UPPER)
    run_lines(lines, UPPER, ExecutorChecks(uninitialized=False))  # nobody asks
    run_lines(lines, EVERY)


def test_rows_that_nobody_wrote_may_be_multiplied_and_left() -> None:
    run_lines([LOAD, write_product("s8"), *STORES[:2]], UPPER)
    for store in STORES[2:]:
        with pytest.raises(UninitializedMemory):
            run_lines([LOAD, write_product("s8"), store], UPPER)


def test_a_column_that_nobody_wrote_is_in_every_row() -> None:
    # %d1 is of the second matrix, here a part of each column of B.
    name = write_product("s8").split(" ", 1)[0]
    product = f"{name} {D}, {X}, {{%d0, %d1}}, {X};"
    for store in STORES:
        with pytest.raises(UninitializedMemory):
            run_lines([LOAD, product, store], UPPER)
    run_lines([LOAD, product, *STORES], EVERY)


@pytest.mark.parametrize("step", ["add.s32 {0}, {0}, 1;", "cvt.rn.f32.s32 {0}, {0};"])
def test_what_is_computed_from_such_a_sum_depends_on_it(step: str) -> None:
    for place in range(4):
        lines = [LOAD, write_product("s8"), step.replace("{0}", f"%d{place}"), STORES[place]]
        if place < 2:
            run_lines(lines, UPPER)
            continue
        with pytest.raises(UninitializedMemory):
            run_lines(lines, UPPER)


def test_a_sum_that_is_not_chosen_is_no_part_of_the_result() -> None:
    for limit, fails in ((0, False), (1, True)):
        choice = f"setp.lt.u32 %p, %l, {limit};\nselp.b32 %d3, %d3, %d1, %p;"
        lines = [LOAD, write_product("s8"), choice, STORES[3]]
        if fails:
            with pytest.raises(UninitializedMemory, match="index 96"):
                run_lines(lines, UPPER)
        else:
            run_lines(lines, UPPER)


def test_a_sum_that_goes_through_shared_memory_is_reported_where_it_is_read() -> None:
    start = [LOAD, write_product("s8"), *PLACE]
    run_lines([*start, "st.shared.v2.b32 [%s], {%d0, %d1};", READ, *STORES[:2]], UPPER)
    lower = "st.shared.v2.b32 [%s], {%d2, %d3};"
    run_lines([*start, lower], UPPER)  # no lane reads it
    with pytest.raises(UninitializedMemory, match="read uninitialized memory: shared memory tile"):
        run_lines([*start, lower, READ], UPPER)


def test_a_sum_that_an_atomic_adds_is_reported() -> None:
    lines = [LOAD, write_product("s8"), "red.global.add.u32 [%o], %d3;"]
    with pytest.raises(UninitializedMemory, match="updated out, index 0"):
        run_lines(lines, UPPER)
    run_lines([*lines[:-1], "red.global.add.u32 [%o], %d0;"], UPPER)


@pytest.mark.parametrize("trans", ["", ".trans"])
def test_a_stored_matrix_of_such_sums_counts_as_uninitialized(trans: str) -> None:
    """Matrix 0 is of %d0, in the first 128 bytes; matrix 1, of %d2, is in the next ones."""
    store = f"stmatrix.sync.aligned.m8n8.x2{trans}.shared.b16 [%s], {{%d0, %d2}};"
    start = [LOAD, write_product("s8"), "bar.sync 0;", store, "bar.sync 0;", "mov.u32 %s, tile;"]
    run_lines([*start, "ld.shared.b32 %d0, [%s+124];", STORES[0]], UPPER)
    with pytest.raises(UninitializedMemory, match="shared memory tile, byte 128"):
        run_lines([*start, "ld.shared.b32 %d0, [%s+128];", STORES[0]], UPPER)
