"""Failures that were kept: their examples run before all others, in every run of their suite.

A pytest plugin: `suites/conftest.py` registers it, and a conftest of somebody's own folder may. A
file that is none, a test that is gone and an example that no longer decodes are errors.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis.errors import DidNotReproduce

from harness.core.errors import UnfixError
from harness.guards import replay
from harness.runs.fuzz import failure_files
from harness.runs.fuzz.example_decoding import (
    SHAPE_MISMATCH,
    are_same_arguments,
    describe_arguments,
    describe_changed_strategy,
)
from harness.runs.fuzz.messages import FailureRecord
from harness.runs.fuzz.node_ids import get_node_id

REGRESSIONS_FOLDER = "regressions"
# Set by a fuzzing run, which has these examples in its database.
WITHOUT_REGRESSIONS = pytest.StashKey[bool]()
ITEM_REGRESSIONS = pytest.StashKey[list[tuple[Path, FailureRecord]]]()


class RegressionPlugin:
    """The plugin."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for folder in dict.fromkeys(item.path.parent for item in items):
            try:
                kept = read_regressions(folder)
            except UnfixError as error:
                raise pytest.UsageError(f"{folder.name}/{REGRESSIONS_FOLDER}: {error}") from error
            for item in items:
                if item.path.parent == folder:
                    item.stash[ITEM_REGRESSIONS] = [
                        one for one in kept if one[1].test == get_node_id(item)
                    ]

    # Innermost: with the item's toggles in, and before the examples of today.
    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
        if not pyfuncitem.config.stash.get(WITHOUT_REGRESSIONS, False):
            for file, failure in pyfuncitem.stash.get(ITEM_REGRESSIONS, []):
                run_regression(pyfuncitem, file, failure)
        return (yield)


def read_regressions(folder: Path) -> list[tuple[Path, FailureRecord]]:
    """The failures kept in a folder of tests, each with a test that is still there."""
    files = sorted((folder / REGRESSIONS_FOLDER).glob("*.json"))
    kept = []
    for file in files:
        failure = failure_files.read_failure(file)
        where = failure_files.locate_test_file(failure, folder)
        if where.parent != folder:
            raise UnfixError(f"{file} is about {failure.test}, a test of another folder")
        # Of somebody's own folder, which may lie elsewhere now.
        node = failure.test.partition("::")[2]
        found = msgspec.structs.replace(failure, test=failure_files.make_node_id(where, node))
        kept.append((file, found))
    return kept


def run_regression(item: Any, file: Path, failure: FailureRecord) -> None:
    """One example again; that it passes is what is hoped for."""
    if not hasattr(item.obj, "hypothesis"):
        raise UnfixError(f"{file}: {failure.test} draws no examples any longer")
    given = {name: item.funcargs[name] for name in item._fixtureinfo.argnames}
    drawn: list[list[str]] = []
    try:
        with _record_arguments(item.obj, drawn), replay.pin_example(item.obj, failure.blob):
            item.obj(**given)
    except DidNotReproduce as error:
        if not drawn or SHAPE_MISMATCH in str(error):
            raise UnfixError(f"{file}: {describe_changed_strategy(failure, [])}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # pytest's own failures are no Exception
        error.add_note(f"the regression kept in {file.name}, of {failure.date}")
        _check_arguments(file, failure, drawn)
        raise
    _check_arguments(file, failure, drawn)


def _check_arguments(file: Path, failure: FailureRecord, drawn_arguments: list[list[str]]) -> None:
    if drawn_arguments and not are_same_arguments(drawn_arguments[0], failure.arguments):
        raise UnfixError(f"{file}: {describe_changed_strategy(failure, drawn_arguments[0])}")


@contextlib.contextmanager
def _record_arguments(test: Any, drawn_arguments: list[list[str]]) -> Iterator[None]:
    """Know what a test is called with."""
    handle = test.hypothesis
    inner: Callable[..., Any] = handle.inner_test

    @functools.wraps(inner)
    def watched(*arguments: Any, **named: Any) -> Any:
        drawn_arguments.append(describe_arguments(named))
        return inner(*arguments, **named)

    handle.inner_test = watched
    try:
        yield
    finally:
        handle.inner_test = inner
