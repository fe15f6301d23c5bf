"""Adapters over private parts of Hypothesis and pytest, where no run of guards shows them.

An upgrade that moves a part fails here or in a guard's run; the name of a test is that of the
function of `guards/hypothesis_adapter.py` or `guards/pytest_adapter.py`.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.control import current_build_context

from harness.core import preparation
from harness.guards import hypothesis_adapter, profiles, pytest_adapter

Property = Callable[[], None]


def make_test(limit: int | None = None) -> tuple[Property, list[int]]:
    """Return a test that fails from a limit on, and the list of its numbers."""
    drawn: list[int] = []

    @settings(max_examples=20, database=None, print_blob=True, derandomize=False)
    @given(number=st.integers(0, 10**6))
    def check(number: int) -> None:
        drawn.append(number)
        assert limit is None or number < limit

    return check, drawn


def test_set_global_seed() -> None:
    before = hypothesis_adapter.get_global_seed()
    runs = []
    try:
        for seed in (1, 1, 2):
            hypothesis_adapter.set_global_seed(seed)
            assert hypothesis_adapter.get_global_seed() == seed
            check, drawn = make_test()
            check()
            runs.append(drawn)
    finally:
        hypothesis_adapter.set_global_seed(before)
    assert runs[0] == runs[1] != runs[2]


def test_leave_out_of_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(perf_counter=iter([0.0, 3600.0]).__next__)
    monkeypatch.setattr(hypothesis_adapter, "time", clock)

    @settings(max_examples=1, database=None, deadline=1, phases=[Phase.generate])
    @given(number=st.just(1))
    def check(number: int) -> None:
        with hypothesis_adapter.leave_out_of_deadline():
            time.sleep(0.02 * number)

    check()


def test_preparation_inside_a_draw_is_left_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its draw is left out already; else a slow example would have a negative time."""
    clock = SimpleNamespace(perf_counter=iter([0.0, 3600.0]).__next__)
    monkeypatch.setattr(hypothesis_adapter, "time", clock)

    def prepare() -> int:
        with hypothesis_adapter.leave_out_of_deadline():
            return 1

    left_out: list[float] = []

    @settings(max_examples=1, database=None, deadline=None, phases=[Phase.generate])
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        assert data.draw(st.builds(prepare)) == 1
        left_out.append(sum(current_build_context().data.draw_times.values()))

    check()
    [seconds] = left_out
    assert 0 <= seconds < 3600


def test_a_profile_leaves_preparation_out_of_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "LISTENERS", [])
    usual = settings.get_current_profile_name()
    for _ in range(2):
        profiles.load_profile("smoke")
    settings.load_profile(usual)
    assert list(preparation.LISTENERS) == [hypothesis_adapter.leave_out_of_deadline]


def test_limit_shrinking() -> None:
    check, drawn = make_test(limit=700)
    with hypothesis_adapter.limit_shrinking(0), pytest.raises(AssertionError):
        check()
    assert drawn[-1] >= 700
    unlimited, drawn_unlimited = make_test(limit=700)
    with pytest.raises(AssertionError):
        unlimited()
    assert drawn_unlimited[-1] == 700


def test_end_stalled_shrinking() -> None:
    """The next smaller example is far: one call finds nothing simpler, 200 do."""
    counts = []
    for calls in (1, 200):
        total = 0
        for number in range(10):  # from some first examples each call finds a simpler one
            check, drawn = make_test(limit=700)
            with hypothesis_adapter.end_stalled_shrinking(calls), pytest.raises(AssertionError):
                hypothesis.seed(number)(check)()
            total += len(drawn)
        counts.append((total, drawn[-1]))
    (few, _), (many, smallest) = counts
    assert few < many
    assert smallest == 700


KINDS = ("integers", "strings", "bytes", "floats")


def test_ignore_imported_constants() -> None:
    providers: Any = importlib.import_module("hypothesis.internal.conjecture.providers")
    own = providers._get_local_constants
    try:
        usual = type(own())
        hypothesis_adapter.ignore_imported_constants()
        constants = providers._get_local_constants()
    finally:
        providers._get_local_constants = own
    assert type(constants) is usual
    assert not any(getattr(constants, kind) for kind in KINDS)


@pytest.mark.parametrize(
    ("mark", "is_left_out"),
    [
        (pytest.mark.skip(reason="later"), True),
        (pytest.mark.skipif(False, reason="never"), False),
        (pytest.mark.skipif("no such name", reason="here"), True),
        (pytest.mark.xfail(run=False), True),
        (pytest.mark.xfail(reason="it runs"), False),
    ],
)
def test_is_left_out(
    request: pytest.FixtureRequest, mark: pytest.MarkDecorator, is_left_out: bool
) -> None:
    item = request.node
    assert not pytest_adapter.is_left_out(item)
    item.own_markers.append(mark.mark)
    try:
        assert pytest_adapter.is_left_out(item) is is_left_out
    finally:
        item.own_markers.pop()


def test_the_projects_own_tests_draw_the_same_examples_in_every_run() -> None:
    """No test of ours can fail by a draw, by what an earlier run stored, or by a slow machine."""
    usual = settings()
    assert (usual.derandomize, usual.deadline, usual.database) == (True, None, None)
    assert HealthCheck.too_slow in usual.suppress_health_check
    providers: Any = importlib.import_module("hypothesis.internal.conjecture.providers")
    assert not any(getattr(providers._get_local_constants(), kind) for kind in KINDS)
