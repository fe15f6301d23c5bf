"""What tests leave behind in the process that runs them, where that is one process for many.

Hypothesis keeps each error it met until its test ends, pytest and Python keep the last one for
longer, and an error has the frames that it went through: on a GPU that is gigabytes an example,
which the next example, or the next test, does not get.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harness.guards import hypothesis_adapter
from harness.workers import run_item

_LAST_ERROR_NAMES = ("last_exc", "last_type", "last_value", "last_traceback")


@contextlib.contextmanager
def drop_example_references(item: pytest.Item) -> Iterator[None]:
    """Meanwhile an example that fails keeps nothing but its error's words and lines."""

    def clear_frames_of_failures(test: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                return test(*args, **kwargs)
            except BaseException as error:
                _clear_error_frames(error)
                raise

        return run

    with hypothesis_adapter.wrap_inner_test(getattr(item, "obj", None), clear_frames_of_failures):
        yield


def drop_test_references(recorder: run_item.PhaseRecorder) -> None:
    """Of one that has ended, and has been told of."""
    for _, error in recorder.phases:
        if error is not None:
            _clear_error_frames(error)
    recorder.phases.clear()
    for name in _LAST_ERROR_NAMES:
        sys.__dict__.pop(name, None)
    gc.collect()


def _clear_error_frames(error: BaseException) -> None:
    """What the frames of an error held; those that still run keep theirs."""
    met: set[int] = set()
    errors: list[BaseException | None] = [error]
    while errors:
        one = errors.pop()
        if one is None or id(one) in met:
            continue
        met.add(id(one))
        for frame, _ in traceback.walk_tb(one.__traceback__):
            with contextlib.suppress(RuntimeError):  # it still runs
                frame.clear()
                len(frame.f_locals)  # whoever read them left a copy, which follows when it is read
        errors += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            errors += one.exceptions
