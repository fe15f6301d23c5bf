"""Drop the references that failed tests leave in a process that runs many tests.

Hypothesis stores each error until its test ends; pytest and Python store the last error for longer.
An error refers to the frames that it passed through, with their tensors: on a GPU that is gigabytes
per example, which the next example or test then lacks.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harness.guards import hypothesis_adapter, run_item

_LAST_ERROR_NAMES = ("last_exc", "last_type", "last_value", "last_traceback")


@contextlib.contextmanager
def drop_example_references(item: pytest.Item) -> Iterator[None]:
    """Drop the locals of a failing example's error during the block, not its message and lines."""

    def clear_frames_of_failures(test: Callable[..., Any]) -> Callable[..., Any]:
        def run_test(*args: Any, **kwargs: Any) -> Any:
            try:
                return test(*args, **kwargs)
            except BaseException as error:
                _clear_error_frames(error)
                raise

        return run_test

    with hypothesis_adapter.wrap_inner_test(getattr(item, "obj", None), clear_frames_of_failures):
        yield


def drop_test_references(recorder: run_item.PhaseRecorder) -> None:
    """Drop the references that remain of a test after its report."""
    for _, error in recorder.phases:
        if error is not None:
            _clear_error_frames(error)
    recorder.phases.clear()
    for name in _LAST_ERROR_NAMES:
        sys.__dict__.pop(name, None)
    gc.collect()


def _clear_error_frames(error: BaseException) -> None:
    """Clear the locals in the frames of an error, except in frames that still run."""
    seen_ids: set[int] = set()
    errors: list[BaseException | None] = [error]
    while errors:
        one = errors.pop()
        if one is None or id(one) in seen_ids:
            continue
        seen_ids.add(id(one))
        for frame, _ in traceback.walk_tb(one.__traceback__):
            with contextlib.suppress(RuntimeError):  # the frame still runs
                frame.clear()
                len(frame.f_locals)  # refreshes the copy from an earlier read of `f_locals`
        errors += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            errors += one.exceptions
