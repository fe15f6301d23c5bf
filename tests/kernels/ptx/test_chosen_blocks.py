"""Of a launch some blocks run, each as it would among all; their largest indices are measured."""

from __future__ import annotations

import numpy as np
from ptx_kernels import HEAD, describe_array, pack_parameters

from harness.kernels.ptx.executor import load_module
from harness.kernels.ptx.launch import CudaLaunch, ExecutorChecks

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


def launch_marks(
    out: np.ndarray, chosen: tuple[tuple[int, int, int], ...], step: int = 1
) -> list[int]:
    """Launch the kernel, and return the largest index of each place."""
    module = load_module(TEXT)
    values = CudaLaunch(
        *("mark_block", "mark_block", GRID, (1, 1, 1), 0, pack_parameters(out, step)),
        (describe_array("out", out),),
        lambda _: None,
        chosen_blocks=chosen,
    )
    assert module.run(values, ExecutorChecks(races=False)) == []
    return [int(extent) for extent in module.last_memory.extents]


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
