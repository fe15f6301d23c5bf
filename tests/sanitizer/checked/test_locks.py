"""Programs that take turns by atomics do not race; ones that forget to do."""

from __future__ import annotations

import pytest
import torch
from checks import check_on_cpu
from locks_to_check import (
    count_under_a_lock,
    count_under_its_own_lock,
    last_one_sums,
    pass_along,
    sum_under_locks,
)

from harness.checking import DataRace


def make_zeros(count: int) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.int32)


def test_rows_that_are_summed_under_locks_do_not_race() -> None:
    source, sums = torch.randn(12, 16), torch.zeros(3, 16)
    with check_on_cpu():
        sum_under_locks[(12,)](make_zeros(3), make_zeros(3), sums, source, N=16, GROUPS=3)
    expected = torch.stack([source[group::3].sum(0) for group in range(3)])
    assert torch.allclose(sums, expected, atol=1e-5)


def test_a_counter_under_a_lock_does_not_race() -> None:
    count = make_zeros(1)
    with check_on_cpu():
        count_under_a_lock[(5,)](make_zeros(1), count, MISTAKE="")
    assert count.item() == 5


@pytest.mark.parametrize(
    ("mistake", "is_warning"), [("no lock", False), ("unlocked first", False), ("relaxed", True)]
)
def test_a_lock_that_is_forgotten_is_a_race(mistake: str, is_warning: bool) -> None:
    words = r"program \(0, 0, 0\) writes and program \(1, 0, 0\)"
    with pytest.raises(DataRace, match=words) as caught, check_on_cpu():
        count_under_a_lock[(5,)](make_zeros(1), make_zeros(1), MISTAKE=mistake)
    assert caught.value.is_warning is is_warning
    assert ("a warning: atomics order it, but relaxed ones" in str(caught.value)) is is_warning


def test_a_lock_of_another_program_orders_nothing() -> None:
    with pytest.raises(DataRace, match=r"count, index 0"), check_on_cpu():
        count_under_its_own_lock[(3,)](make_zeros(3), make_zeros(1))


def test_an_order_holds_through_a_third_program() -> None:
    values = make_zeros(1)
    with check_on_cpu():
        pass_along[(4,)](make_zeros(4), values)
    assert values.item() == 10


def test_parts_are_read_by_the_last_program_after_their_tickets() -> None:
    total = make_zeros(1)
    with check_on_cpu():
        last_one_sums[(4,)](make_zeros(1), make_zeros(4), total, WAITS=True)
    assert total.item() == 10
    with pytest.raises(DataRace, match="parts, index 0"), check_on_cpu():
        last_one_sums[(4,)](make_zeros(1), make_zeros(4), make_zeros(1), WAITS=False)
