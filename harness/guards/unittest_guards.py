"""Tests in the form of SGLang's (`unittest`) as guards, which pytest can run on both sides.

pytest does not parametrise the methods of a `TestCase`, so it collects a plain class in its place,
with one guard that runs all of its tests. As in a pull request, the case as a whole fails without
the fix and passes with it; a test of it may hold on both sides.
"""

from __future__ import annotations

import inspect
import unittest
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from harness.core import device
from harness.guards.cells import GUARDS_MARKER

# Returns whether errors of a class, which is no assertion's, are the bug that a finding is about.
IsBug = Callable[[str], bool]


def make_guard_class(
    collector: pytest.Module, name: str, value: object, toggle: str, is_bug: IsBug
) -> pytest.Class | None:
    """Make the guard of a `TestCase` with tests; None for another object."""
    if not (inspect.isclass(value) and issubclass(value, unittest.TestCase)):
        return None
    if not unittest.TestLoader().getTestCaseNames(value):
        return None
    # SGLang's base class repeats a failed test, and hides its error in one of its own.
    once = {"_callTestMethod": unittest.TestCase._callTestMethod}  # type: ignore[attr-defined]
    case = type(name, (value,), once)

    def test_case(self: Any) -> None:
        try:
            with _check_virtual_launches():
                unittest.TestLoader().loadTestsFromTestCase(case).debug()
        except Exception as error:
            error_class = type(error).__name__
            if is_bug(error_class) and not isinstance(error, AssertionError):
                pytest.fail(f"{error_class}: {error}")
            raise

    node: pytest.Class = pytest.Class.from_parent(collector, name=name)
    node.obj = type(name, (), {"test_case": test_case})
    node.add_marker(pytest.mark.__getattr__(GUARDS_MARKER)(toggle))
    return node


def _check_virtual_launches() -> AbstractContextManager[Any]:
    """Run the launches of a block on this CPU, where the GPU is virtual."""
    if device.get_device() != device.VIRTUAL:
        return nullcontext()
    from harness import checking  # imported late: torch

    return checking.checked()
