"""Tests in the form of SGLang's (`unittest`) as guards, which pytest can run on both sides.

pytest does not parametrise the methods of a `TestCase`, so it collects a plain class in its place:
each method runs one test of the `TestCase`, with its fixtures.
"""

from __future__ import annotations

import inspect
import unittest
from collections.abc import Callable
from typing import Any

import pytest

from harness.guards.cells import GUARDS_MARKER

# Returns whether errors of a class, which is no assertion's, are the bug that a finding is about.
IsBug = Callable[[str], bool]


def make_guard_class(
    collector: pytest.Module, name: str, value: object, toggle: str, is_bug: IsBug
) -> pytest.Class | None:
    """Make the guards of a `TestCase`; None for another object."""
    if not (inspect.isclass(value) and issubclass(value, unittest.TestCase)):
        return None
    tests = unittest.TestLoader().getTestCaseNames(value)
    # SGLang's base class repeats a failed test, and hides its error in one of its own.
    once = {"_callTestMethod": unittest.TestCase._callTestMethod}  # type: ignore[attr-defined]
    case = type(name, (value,), once)
    methods = {test: _make_method(case, test, is_bug) for test in tests}
    node: pytest.Class = pytest.Class.from_parent(collector, name=name)
    node.obj = type(name, (), methods)
    node.add_marker(pytest.mark.__getattr__(GUARDS_MARKER)(toggle))
    return node


def _make_method(case: type[unittest.TestCase], name: str, is_bug: IsBug) -> Callable[[Any], None]:
    def run_test(self: Any) -> None:
        try:
            unittest.TestSuite([case(name)]).debug()
        except Exception as error:
            error_class = type(error).__name__
            if is_bug(error_class) and not isinstance(error, AssertionError):
                pytest.fail(f"{error_class}: {error}")
            raise

    run_test.__name__ = name
    return run_test
