"""Regressions: stored failures whose examples run first in every run of their suite.

`suites/conftest.py` registers this pytest plugin; a user's conftest can do the same. It is an error
if a file is no failure, a test is gone, or an example no longer decodes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis.errors import DidNotReproduce

from harness.core.errors import UnfixError
from harness.guards import hypothesis_adapter, pytest_adapter, replay
from harness.runs.fuzz import failure_files
from harness.runs.fuzz.failure_files import (
    are_same_arguments,
    describe_arguments,
    describe_changed_strategy,
)
from harness.store.fuzz.values import FailureRecord

REGRESSIONS_FOLDER = "regressions"
# Set by a fuzzing run, whose database has these examples.
WITHOUT_REGRESSIONS = pytest.StashKey[bool]()
ITEM_REGRESSIONS = pytest.StashKey[list[tuple[Path, FailureRecord]]]()


def get_node_id(item: Any) -> str:
    """Return a test's name in failure files, without its toggle."""
    node = replay.find_guard_node(item)
    return failure_files.make_node_id(item.path, node.partition("::")[2])


class RegressionPlugin:
    """A plugin that reads the regressions of each folder of tests, and runs them."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for folder in dict.fromkeys(item.path.parent for item in items):
            try:
                regressions = read_regressions(folder)
            except UnfixError as error:
                raise pytest.UsageError(f"{folder.name}/{REGRESSIONS_FOLDER}: {error}") from error
            for item in items:
                if item.path.parent == folder:
                    item.stash[ITEM_REGRESSIONS] = [
                        pair for pair in regressions if pair[1].test == get_node_id(item)
                    ]

    # Innermost: under the item's toggles, and before the test draws examples.
    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
        if not pyfuncitem.config.stash.get(WITHOUT_REGRESSIONS, False):
            for file, failure in pyfuncitem.stash.get(ITEM_REGRESSIONS, []):
                run_regression(pyfuncitem, file, failure)
        return (yield)


def read_regressions(folder: Path) -> list[tuple[Path, FailureRecord]]:
    """Read the regressions in a folder of tests; each must have an existing test."""
    regressions = []
    for file in sorted((folder / REGRESSIONS_FOLDER).glob("*.json")):
        failure = failure_files.read_failure(file)
        where = failure_files.locate_test_file(failure, folder)
        if where.parent != folder:
            raise UnfixError(f"{file} is about {failure.test}, a test of another folder")
        # A folder outside of the project may have another place now.
        name = failure_files.make_node_id(where, failure.test.partition("::")[2])
        regressions.append((file, msgspec.structs.replace(failure, test=name)))
    return regressions


def run_regression(item: Any, file: Path, failure: FailureRecord) -> None:
    """Run one example, which should pass."""
    if not hypothesis_adapter.draws_examples(item.obj):
        raise UnfixError(f"{file}: {failure.test} draws no examples any longer")
    drawn: list[list[str]] = []

    def record_arguments(test: Callable[..., Any]) -> Callable[..., Any]:
        def run_example(*arguments: Any, **named: Any) -> Any:
            drawn.append(describe_arguments(named))
            return test(*arguments, **named)

        return run_example

    try:
        with (
            hypothesis_adapter.wrap_inner_test(item.obj, record_arguments),
            hypothesis_adapter.pin_example(item.obj, failure.blob),
        ):
            item.obj(**pytest_adapter.get_own_arguments(item))
    except DidNotReproduce as error:
        if not drawn or hypothesis_adapter.SHAPE_MISMATCH_PHRASE in str(error):
            raise UnfixError(f"{file}: {describe_changed_strategy(failure, [])}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # pytest's own failures are not of type Exception
        error.add_note(f"the regression kept in {file.name}, of {failure.date}")
        _check_arguments(file, failure, drawn)
        raise
    _check_arguments(file, failure, drawn)


def _check_arguments(file: Path, failure: FailureRecord, drawn_arguments: list[list[str]]) -> None:
    if drawn_arguments and not are_same_arguments(drawn_arguments[0], failure.arguments):
        raise UnfixError(f"{file}: {describe_changed_strategy(failure, drawn_arguments[0])}")
