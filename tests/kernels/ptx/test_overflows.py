"""An overflow is found where it gets into an address, and a difference or a packed word is none."""

from __future__ import annotations

import numpy as np
import pytest
from planted_faults import TEXT, check_place, launch_fault
from ptx_kernels import launch_text, pack_parameters

from harness.kernels.check.violations import IntegerOverflow
from harness.kernels.ptx.launch import ExecutorChecks


@pytest.mark.parametrize(
    ("entry", "marker", "row", "stride", "true"),
    [
        ("overflow_product", "signed product", 1 << 20, 1 << 12, 1 << 32),
        ("overflow_unsigned", "unsigned product", 1 << 20, 1 << 13, 1 << 33),
        ("overflow_shift", "shift", 1 << 12, 0, 1 << 32),
    ],
)
def test_an_overflow_on_its_way_into_an_address_is_found(
    entry: str, marker: str, row: int, stride: int, true: int
) -> None:
    out = np.zeros(64, np.float32)
    parameters = pack_parameters(out, row | stride << 32)
    with pytest.raises(IntegerOverflow, match=f"{true} became 0 in 32 bits") as caught:
        launch_fault(entry, parameters, {"out": out})
    check_place(caught.value, marker, (0, 0, 0))
    launch_fault(entry, pack_parameters(out, 0), {"out": out})


def test_overflow_is_not_looked_for_when_that_is_switched_off() -> None:
    out = np.zeros(64, np.float32)
    launch_fault(
        "overflow_product",
        pack_parameters(out, 1 << 20 | 1 << 44),
        {"out": out},
        checks=ExecutorChecks(overflow=False),
    )


def test_an_index_that_32_bits_do_not_hold_is_found() -> None:
    out, index = np.zeros(64, np.float32), np.arange(32)
    launch_fault("overflow_narrowing", pack_parameters(out, index), {"out": out, "index": index})
    index[9] = 1 << 32
    with pytest.raises(IntegerOverflow, match="4294967296 became 0") as caught:
        launch_fault(
            "overflow_narrowing", pack_parameters(out, index), {"out": out, "index": index}
        )
    check_place(caught.value, "narrowing", (9, 0, 0))


_EXTENDED = "shl.b64 \t%rd8, %rd7, 32;\n\tshr.s64 \t%rd9, %rd8, 30;"
_CONVERTED = "cvt.u32.u64 \t%r1, %rd7;\n\tmul.wide.s32 \t%rd9, %r1, 4;"


@pytest.mark.parametrize("narrowing", [_EXTENDED, _CONVERTED])
def test_a_word_of_a_pair_is_no_narrowed_index(narrowing: str) -> None:
    """A kernel packs an epoch above an index, and reads the epoch by a shift."""
    assert TEXT.count(_EXTENDED) == 1
    out, index = np.zeros(64, np.float32), np.arange(32) | 5 << 32
    tensors = {"out": out, "index": index}
    alone = TEXT.replace(_EXTENDED, narrowing)
    [found] = launch_text(
        alone, pack_parameters(out, index), tensors, entry="overflow_narrowing", block=(32, 1, 1)
    )
    assert "became 0 in 32 bits" in str(found)
    pair = TEXT.replace(_EXTENDED, f"shr.u64 \t%rd10, %rd7, 32;\n\t{narrowing}")
    assert not launch_text(
        pair, pack_parameters(out, index), tensors, entry="overflow_narrowing", block=(32, 1, 1)
    )
    assert out[:32].tolist() == [1] * 32


def test_a_difference_that_a_sum_undoes_is_no_overflow() -> None:
    out = np.zeros(64, np.float32)
    launch_fault("wraps_and_returns", pack_parameters(out, 3 | 5 << 32), {"out": out})
    assert out[3] == 1


def test_a_shift_by_an_amount_of_a_loop_is_no_packed_word() -> None:
    """The amount is an argument of the loop's block, which no operation defines."""
    assert TEXT.count(_EXTENDED) == 1
    loop = (
        ".reg .b32 \t%i<2>;\n\t.reg .b64 \t%b<2>;\n\t.reg .pred \t%q<2>;\n\t"
        "mov.u32 \t%i1, 0;\n$L_bytes:\n\tshr.u64 \t%b1, %rd7, %i1;\n\tadd.s32 \t%i1, %i1, 8;\n\t"
        "setp.lt.s32 \t%q1, %i1, 64;\n\t@%q1 bra \t$L_bytes;\n\t"
    )
    text = TEXT.replace(_EXTENDED, loop + _EXTENDED)
    out, index = np.zeros(64, np.float32), np.arange(32)
    tensors = {"out": out, "index": index}
    assert not launch_text(
        text, pack_parameters(out, index), tensors, entry="overflow_narrowing", block=(32, 1, 1)
    )
    assert out[:32].tolist() == [1] * 32
