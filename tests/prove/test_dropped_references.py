"""Tests that share a process do not keep memory alive through their errors."""

from __future__ import annotations

import sys
import weakref
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.guards import run_item
from harness.workers import drop_references


class Tensor:
    """An object that stands for memory, and is counted."""

    living: ClassVar[weakref.WeakSet[Tensor]] = weakref.WeakSet()

    def __init__(self) -> None:
        Tensor.living.add(self)


@pytest.fixture(autouse=True)
def none_before() -> None:
    Tensor.living.clear()


def fail_with_references(tensor: Tensor, many: int) -> None:
    deeper = Tensor()
    try:
        assert many < 3, deeper is not tensor
    except AssertionError as error:
        raise ValueError("too many") from error


def test_failing_examples_keep_nothing_alive() -> None:
    most = 0

    @settings(max_examples=200, database=None)
    @given(many=st.integers(0, 2**20))
    def guard(many: int) -> None:
        nonlocal most
        tensor = Tensor()
        most = max(most, len(Tensor.living))
        fail_with_references(tensor, many)

    item: Any = SimpleNamespace(obj=guard)
    before = guard.hypothesis.inner_test  # type: ignore[attr-defined]
    with (
        drop_references.drop_example_references(item),
        pytest.raises(ValueError, match="too many") as caught,
    ):
        guard()
    assert most == 1
    assert "many=3" in "".join(caught.value.__notes__)
    assert guard.hypothesis.inner_test is before  # type: ignore[attr-defined]


def test_a_failed_test_keeps_nothing_alive() -> None:
    listener = run_item.PhaseRecorder()

    def guard() -> None:
        tensor = Tensor()
        fail_with_references(tensor, 5)

    def run_guard() -> None:
        try:
            guard()
        except ValueError as error:
            listener.phases.append((Any, ExceptionGroup("all", [error])))  # type: ignore[arg-type]
            sys.last_value = error

    run_guard()
    assert len(Tensor.living) == 2
    drop_references.drop_test_references(listener)
    assert not Tensor.living
    assert not listener.phases
    assert not hasattr(sys, "last_value")
