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

from harness.errors import UnfixError
from harness.fuzz import failures
from harness.fuzz.decoding import NOT_THE_SHAPE, no_longer_decodes, same, words
from harness.fuzz.nodes import node_of
from harness.fuzz.values import Repro
from harness.guards import replay

FOLDER = "regressions"
# Set by a fuzzing run, which has these examples in its database.
LEAVE_OUT = pytest.StashKey[bool]()
KEPT = pytest.StashKey[list[tuple[Path, Repro]]]()


class Regressions:
    """The plugin."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for folder in dict.fromkeys(item.path.parent for item in items):
            try:
                kept = read(folder)
            except UnfixError as error:
                raise pytest.UsageError(f"{folder.name}/{FOLDER}: {error}") from error
            for item in items:
                if item.path.parent == folder:
                    item.stash[KEPT] = [one for one in kept if one[1].test == node_of(item)]

    # Innermost: with the item's toggles in, and before the examples of today.
    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
        if not pyfuncitem.config.stash.get(LEAVE_OUT, False):
            for file, failure in pyfuncitem.stash.get(KEPT, []):
                run(pyfuncitem, file, failure)
        return (yield)


def read(folder: Path) -> list[tuple[Path, Repro]]:
    """The failures kept in a folder of tests, each with a test that is still there."""
    files = sorted((folder / FOLDER).glob("*.json"))
    kept = []
    for file in files:
        failure = failures.read(file)
        where = failures.file_of(failure, folder)
        if where.parent != folder:
            raise UnfixError(f"{file} is about {failure.test}, a test of another folder")
        # Of somebody's own folder, which may lie elsewhere now.
        node = failure.test.partition("::")[2]
        found = msgspec.structs.replace(failure, test=failures.node(where, node))
        kept.append((file, found))
    return kept


def run(item: Any, file: Path, failure: Repro) -> None:
    """One example again; that it passes is what is hoped for."""
    if not hasattr(item.obj, "hypothesis"):
        raise UnfixError(f"{file}: {failure.test} draws no examples any longer")
    given = {name: item.funcargs[name] for name in item._fixtureinfo.argnames}
    drawn: list[list[str]] = []
    try:
        with _watching(item.obj, drawn), replay.reproducing(item.obj, failure.blob):
            item.obj(**given)
    except DidNotReproduce as error:
        if not drawn or NOT_THE_SHAPE in str(error):
            raise UnfixError(f"{file}: {no_longer_decodes(failure, [])}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # pytest's own failures are no Exception
        error.add_note(f"the regression kept in {file.name}, of {failure.date}")
        _check(file, failure, drawn)
        raise
    _check(file, failure, drawn)


def _check(file: Path, failure: Repro, drawn: list[list[str]]) -> None:
    if drawn and not same(drawn[0], failure.arguments):
        raise UnfixError(f"{file}: {no_longer_decodes(failure, drawn[0])}")


@contextlib.contextmanager
def _watching(test: Any, drawn: list[list[str]]) -> Iterator[None]:
    """Know what a test is called with."""
    handle = test.hypothesis
    inner: Callable[..., Any] = handle.inner_test

    @functools.wraps(inner)
    def watched(*arguments: Any, **named: Any) -> Any:
        drawn.append(words(named))
        return inner(*arguments, **named)

    handle.inner_test = watched
    try:
        yield
    finally:
        handle.inner_test = inner
