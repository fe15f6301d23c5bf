"""A session can report several violations, and any check can be switched off."""

from __future__ import annotations

import contextlib

import pytest
import torch
from checks import make_numbers
from faults_to_check import add_beside, add_scaled, faulty, keep_negative, wrapped_index

from harness import checking
from harness.checking import Check

KINDS = {
    "bounds": checking.OutOfBounds,
    "races": checking.DataRace,
    "uninitialized": checking.UninitializedMemory,
}


def launch_faulty(**options: object) -> tuple[Check, list[type], torch.Tensor]:
    """Launch a kernel with three faults; return the session, its errors' types, and its result."""
    with checking.checked("cpu", **options) as check:  # type: ignore[arg-type]
        source, target = torch.empty(8, dtype=torch.int32), torch.zeros(16, dtype=torch.int32)
        source[:4] = 1
        faulty[(2,)](source, target, N=8)
        kinds = [type(error) for error in check.launches.errors]
        check.discard_errors()
    return check, kinds, target


def test_all_faults_of_a_launch_are_reported_with_a_line_each() -> None:
    with pytest.raises(checking.OutOfBounds) as caught, checking.checked("cpu", max_reports=8):
        faulty[(2,)](torch.empty(8, dtype=torch.int32), make_numbers(16), N=8)
    notes = caught.value.__notes__
    assert "past the end of source" in str(caught.value)
    assert notes[0].startswith("launched at ")
    assert len(notes) == 3
    assert any("uninitialized memory: source" in note for note in notes)
    assert any("write different values to target" in note for note in notes)


@pytest.mark.parametrize(
    ("factor", "count", "is_warning"), [(0.0, 8, True), (1.0, 4, True), (1.0, 8, False)]
)
def test_a_read_that_changes_no_result_is_a_warning(
    factor: float, count: int, is_warning: bool
) -> None:
    with checking.checked("cpu", max_reports=8) as check:
        x, y, out = torch.ones(8), torch.empty(8), torch.ones(8)
        y[:4] = 3.0
        add_scaled[(1,)](x, y, out, factor, count, N=8)
        [error] = check.launches.errors
        check.discard_errors()
    assert "uninitialized memory: y, index 4" in str(error)
    assert error.is_warning is is_warning  # type: ignore[attr-defined]
    assert out.tolist()[:4] == [2 + 3 * factor] * 4  # the launch counts once


def test_a_read_whose_sign_alone_matters_is_an_error() -> None:
    with checking.checked("cpu", max_reports=8) as check:
        keep_negative[(1,)](torch.empty(8), torch.ones(8), N=8)
        [error] = check.launches.errors
        check.discard_errors()
    assert not error.is_warning  # type: ignore[attr-defined]


def test_a_launch_goes_on_behind_its_reports() -> None:
    _, kinds, target = launch_faulty(max_reports=8)
    assert kinds == [checking.OutOfBounds, checking.UninitializedMemory, checking.DataRace]
    assert target[:4].tolist() == [1, 1, 1, 1]
    assert target[8:].tolist() == [0] * 8  # read past the end


def test_the_last_report_that_is_allowed_ends_the_launch() -> None:
    with pytest.raises(checking.OutOfBounds) as caught:
        launch_faulty(max_reports=1)
    assert not hasattr(caught.value, "__notes__")
    with pytest.raises(checking.UninitializedMemory):
        launch_faulty(max_reports=2)


@pytest.mark.parametrize("name", KINDS)
def test_each_check_can_be_on_alone(name: str) -> None:
    _, kinds, _ = launch_faulty(checks=[name], max_reports=8)
    assert kinds == [KINDS[name]]


def test_overflow_is_a_check_of_its_own() -> None:
    source, target = torch.zeros(8, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    for checks, kinds in (
        (["overflow"], [checking.IntegerOverflow]),
        (["bounds"], [checking.OutOfBounds]),
        (["bounds", "overflow"], [checking.IntegerOverflow]),
        (["races"], []),
    ):
        with checking.checked("cpu", checks=checks, max_reports=8) as check:
            wrapped_index[(1,)](source, target, 1 << 16, N=8)
            assert [type(error) for error in check.launches.errors] == kinds
            check.discard_errors()


def test_a_kernels_atomics_leave_out_what_was_reported() -> None:
    total = torch.zeros(4, dtype=torch.int32)
    with checking.checked("cpu", max_reports=8) as check:
        add_beside[(2,)](total, N=8)
        assert [type(error) for error in check.launches.errors] == [checking.OutOfBounds]
        check.discard_errors()
    assert total.tolist() == [2] * 4


def test_a_word_that_is_no_check_is_refused() -> None:
    with (
        pytest.raises(ValueError, match="bounds, overflow, races, uninitialized, and not leaks"),
        checking.checked("cpu", checks=["leaks"]),
    ):
        pass


def test_an_error_of_the_code_under_test_names_the_report_that_this_code_caught() -> None:
    def catch_and_fail() -> None:
        with contextlib.suppress(checking.OutOfBounds):
            faulty[(2,)](torch.empty(8, dtype=torch.int32), make_numbers(16), N=8)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught, checking.checked("cpu"):
        catch_and_fail()
    (note,) = caught.value.__notes__
    assert "past the end of source" in note
