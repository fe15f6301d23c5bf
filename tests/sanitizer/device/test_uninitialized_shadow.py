"""Shadows of large storages keep each byte that nothing wrote, at the edges of pages, too."""

from __future__ import annotations

import mmap

import pytest

from harness.runs.rehearse.uninitialized_shadow import clear_range, make_shadow

SIZE = 3 << 20  # of a shadow whose long ranges are mapped anew
LONG = (1 << 20) + 1


@pytest.mark.parametrize("first", [0, 1, mmap.PAGESIZE, mmap.PAGESIZE + 17])
@pytest.mark.parametrize("length", [LONG, LONG + mmap.PAGESIZE - 1, LONG + mmap.PAGESIZE // 2])
def test_a_long_range_is_cleared_to_the_byte(first: int, length: int) -> None:
    shadow = make_shadow(SIZE)
    clear_range(shadow, first, first + length)
    assert shadow[:first].all()
    assert not shadow[first : first + length].any()
    assert shadow[first + length :].all()


def test_a_range_up_to_the_end_is_cleared() -> None:
    shadow = make_shadow(SIZE + 5)
    clear_range(shadow, 3, SIZE + 5)
    assert shadow.nonzero().flatten().tolist() == [0, 1, 2]
    shadow[7] = 1  # what was mapped anew can be written
    assert int(shadow.sum()) == 4


def test_another_shadow_keeps_its_bytes() -> None:
    shadow, other = make_shadow(SIZE), make_shadow(SIZE)
    clear_range(shadow, 1, SIZE - 1)
    assert other.all()
