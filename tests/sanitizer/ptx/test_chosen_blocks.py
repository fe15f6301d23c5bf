"""Of a launch some blocks run, each as it would among all; their largest indices are measured.

What they do to variables of the module ends with the sample.
"""

from __future__ import annotations

import numpy as np
import pytest
from ptx_kernels import HEAD, pack_parameters, run_text

from harness.sanitizer.ptx.executor import load_module
from harness.sanitizer.ptx.launch import Dimensions, ExecutorChecks

GRID = (4, 3, 2)
# out[x + 4 * (y + 3 * z)] = x + 10 * y + 100 * z + 1, by an index of 32 bits times `step`.
TEXT = f"""{HEAD}
.visible .entry mark_block(.param .u64 out, .param .u32 step)
{{
    .reg .b32 %r<16>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [out];
    ld.param.u32 %r9, [step];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ctaid.y;
    mov.u32 %r3, %ctaid.z;
    mad.lo.s32 %r4, %r3, 3, %r2;
    mad.lo.s32 %r5, %r4, 4, %r1;
    mul.lo.s32 %r10, %r5, %r9;
    mul.wide.s32 %rd3, %r10, 4;
    add.s64 %rd4, %rd2, %rd3;
    mad.lo.s32 %r6, %r2, 10, %r1;
    mad.lo.s32 %r7, %r3, 100, %r6;
    add.s32 %r8, %r7, 1;
    st.global.u32 [%rd4], %r8;
    ret;
}}
"""


def launch_marks(out: np.ndarray, chosen: tuple[Dimensions, ...], step: int = 1) -> list[int]:
    """Launch the kernel, and return the largest index of each place."""
    run_blocks(TEXT, GRID, chosen, out, step)
    return [int(extent) for extent in load_module(TEXT).last_memory.extents]


def run_blocks(
    text: str, grid: Dimensions, chosen: tuple[Dimensions, ...], out: np.ndarray, *numbers: int
) -> None:
    parameters, checks = pack_parameters(out, *numbers), ExecutorChecks(races=False)
    run_text(text, parameters, {"out": out}, grid=grid, chosen_blocks=chosen, checks=checks)


def test_only_chosen_blocks_run() -> None:
    out = np.zeros(24, np.int32)
    launch_marks(out, ((3, 2, 1), (0, 0, 0), (1, 2, 0)))
    assert {int(place): int(out[place]) for place in out.nonzero()[0]} == {0: 1, 9: 22, 23: 124}
    launch_marks(out, ())
    assert out.all()


def test_the_largest_index_of_chosen_blocks_is_measured() -> None:
    out = np.zeros(24 * 1000, np.int32)
    assert max(launch_marks(out, ((1, 0, 0), (3, 2, 1)), step=1000)) == 23_000
    assert max(launch_marks(out, (), step=1000)) == 0  # nobody asked


# out[n - x] = x by an index of 32 bits times `step`; blocks beyond n make no access, but the
# compiler computes the address before the branch.
GUARDED = f"""{HEAD}
.visible .entry mark_below(.param .u64 out, .param .u32 step, .param .u64 n)
{{
    .reg .b32 %r<8>;
    .reg .b64 %rd<5>;
    .reg .pred %p<2>;
    ld.param.u64 %rd1, [out];
    ld.param.u32 %r1, [step];
    ld.param.u32 %r2, [n];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u32 %r3, %ctaid.x;
    INDEX
    mul.wide.KIND %rd3, %r4, 4;
    add.s64 %rd4, %rd2, %rd3;
    setp.gt.s32 %p1, %r3, %r2;
    @%p1 bra DONE;
    st.global.u32 [%rd4], %r3;
DONE:
    ret;
}}
"""


@pytest.mark.parametrize(
    ("index", "kind", "largest"),
    [
        ("mul.lo.s32 %r4, %r3, %r1;", "s32", 1000),  # block 3 would have 3000
        ("mul.lo.s32 %r4, %r3, %r1;", "u32", 500),  # half of it: the limit is twice as far
        ("sub.s32 %r4, %r2, %r3;", "u32", 0),  # block 3 would have -2
    ],
)
def test_a_block_without_an_access_has_no_index(index: str, kind: str, largest: int) -> None:
    out = np.zeros(4000, np.int32)
    text = GUARDED.replace("INDEX", index).replace("KIND", kind)
    for blocks, wanted in (((1, 0, 0), (3, 0, 0)), largest), (((3, 0, 0),), 0):
        run_blocks(text, (4, 1, 1), blocks, out, 1000, 1)
        memory = load_module(text).last_memory
        assert int(memory.extents.max()) == wanted
        if wanted:
            assert memory.lowered.sites[int(memory.extents.argmax())].label == "write"


# Each block counts itself; the last of 100 marks the output and counts anew.
COUNTED = f"""{HEAD}
.global .align 4 .u32 arrived;
.visible .entry mark_last(.param .u64 out)
{{
    .reg .b32 %r<3>;
    .reg .b64 %rd<4>;
    .reg .pred %p<2>;
    ld.param.u64 %rd1, [out];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u64 %rd3, arrived;
    atom.global.add.u32 %r1, [%rd3], 1;
    setp.ne.u32 %p1, %r1, 99;
    @%p1 bra DONE;
    mov.u32 %r2, 0;
    st.global.u32 [%rd3], %r2;
    mov.u32 %r2, %ctaid.x;
    st.global.u32 [%rd2], %r2;
DONE:
    ret;
}}
"""


def test_a_variable_of_the_module_is_as_before_a_sample() -> None:
    out = np.zeros(1, np.int32)
    for chosen in (((0, 0, 0), (99, 0, 0)), ((5, 0, 0), (17, 0, 0)), ()):
        run_blocks(COUNTED, (100, 1, 1), chosen, out)
        assert out[0] == (0 if chosen else 99)
