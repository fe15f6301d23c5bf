"""Everything private of Hypothesis that the project uses, in one place.

`tests/test_adapters.py` runs the functions that no run of guards shows; the others fail in those
runs, if an upgrade of Hypothesis moves a name. `pyproject.toml` has the upper pin.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import re
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import hypothesis
import hypothesis.core
from hypothesis import settings
from hypothesis.control import current_build_context, currently_in_test_context
from hypothesis.core import decode_failure, encode_failure
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.internal.conjecture import engine, providers
from hypothesis.internal.conjecture.data import ConjectureData, ConjectureResult, Status
from hypothesis.internal.conjecture.engine import ConjectureRunner, ExitReason
from hypothesis.internal.conjecture.providers import HypothesisProvider
from hypothesis.internal.conjecture.shrinker import Shrinker, sort_key
from hypothesis.internal.constants_ast import Constants

__all__ = [
    "ConjectureData",
    "ConjectureResult",
    "ConjectureRunner",
    "ExitReason",
    "HypothesisProvider",
    "Status",
]

PASSED_PHRASE = "completed successfully"  # in DidNotReproduce: the example was drawn, and passes
SHAPE_MISMATCH_PHRASE = "shape of the test data"  # in DidNotReproduce: it could not be drawn
_BLOB = re.compile(r"reproduce_failure\('([^']+)', (b'[^']*')\)")
_SETTINGS = "_hypothesis_internal_use_settings"
_REPRODUCE = "_hypothesis_internal_use_reproduce_failure"
_MISSING = object()
_PREPARATION = "unfix: preparation"  # beside the names of draws


def draws_examples(test: object) -> bool:
    """Return whether a test has `@given`."""
    return hasattr(test, "hypothesis")


def ignore_imported_constants() -> None:
    """Draw no constants from imported code, since workers import in different orders."""
    constants = Constants()
    providers._get_local_constants = lambda: constants


def get_global_seed() -> int | None:
    seed: int | None = hypothesis.core.global_force_seed
    return seed


def set_global_seed(seed: int | None) -> None:
    hypothesis.core.global_force_seed = seed  # type: ignore[assignment]


def extract_blob(error: BaseException) -> str:
    """Return the failing example's blob from the notes of its error, or an empty string."""
    match = _BLOB.search("\n".join(getattr(error, "__notes__", ())))
    return ast.literal_eval(match[2]).decode() if match else ""


@contextlib.contextmanager
def override_settings(test: object, change: Callable[[settings], settings]) -> Iterator[None]:
    """Run a `@given` test under changed settings during the block."""
    function = getattr(test, "__func__", test)
    usual = getattr(function, _SETTINGS, None)
    with _set_attribute(function, _SETTINGS, change(usual) if usual else _MISSING):
        yield


@contextlib.contextmanager
def pin_example(test: object, blob: str) -> Iterator[None]:
    """Run only one example of a test during the block."""
    function = getattr(test, "__func__", test)
    with _set_attribute(function, _REPRODUCE, (hypothesis.__version__, blob.encode())):
        yield


class ExampleReplay:
    """The replay of one example: the draws that a test made."""

    def __init__(self, blob: str) -> None:
        self.choice_count = len(decode_failure(blob.encode()))
        self.data: ConjectureData | None = None

    @property
    def has_drawn_example(self) -> bool:
        """Return whether the test drew every choice of the example; it may have drawn more."""
        data = self.data
        return (
            data is not None and data.misaligned_at is None and len(data.nodes) >= self.choice_count
        )


@contextlib.contextmanager
def replay_example(test: object, blob: str) -> Iterator[ExampleReplay]:
    """Run only one example of a test during the block; the test may draw more behind it.

    Hypothesis's own replay ends a test that draws more. A test that draws, asserts, and draws again
    draws more when the assertion holds.
    """
    replay = ExampleReplay(blob)

    class ReplayData(ConjectureData):
        @classmethod
        def for_choices(cls, choices: Any, **_: Any) -> ConjectureData:
            replay.data = ConjectureData(random=Random(0), prefix=choices)
            return replay.data

    core: Any = hypothesis.core
    with pin_example(test, blob), _set_attribute(core, "ConjectureData", ReplayData):
        yield replay


@contextlib.contextmanager
def _set_attribute(owner: object, name: str, value: object) -> Iterator[None]:
    before = getattr(owner, name, _MISSING)
    if value is not _MISSING:
        setattr(owner, name, value)
    try:
        yield
    finally:
        if before is not _MISSING:
            setattr(owner, name, before)
        elif value is not _MISSING:
            delattr(owner, name)


@contextlib.contextmanager
def wrap_inner_test(
    test: Any, make_wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """Wrap the function that Hypothesis calls with each example, if the test draws examples."""
    if not draws_examples(test):
        yield
        return
    inner = test.hypothesis.inner_test
    test.hypothesis.inner_test = functools.wraps(inner)(make_wrapper(inner))
    try:
        yield
    finally:
        test.hypothesis.inner_test = inner


def prepare_search(test: Any, change: Callable[[settings], settings], seed: int, key: str) -> None:
    """Give a test its settings, its seed and its key in the database, in this process for good."""
    function = getattr(test, "__func__", test)
    set_global_seed(None)  # a forced seed would switch the database off
    function._hypothesis_internal_use_settings = change(getattr(function, _SETTINGS, settings()))
    function._hypothesis_internal_use_seed = seed
    function._hypothesis_internal_database_key = key.encode()


@contextlib.contextmanager
def leave_out_of_deadline() -> Iterator[None]:
    """Leave the time of this block out of the running example's, as Hypothesis does with draws."""
    began = time.perf_counter()
    try:
        yield
    finally:
        # Inside a draw it is part of that draw's time, which is left out already.
        if currently_in_test_context() and current_build_context().data.depth <= 0:
            draw_times = current_build_context().data.draw_times
            seconds = time.perf_counter() - began
            draw_times[_PREPARATION] = draw_times.get(_PREPARATION, 0.0) + seconds


def encode_current_example() -> str:
    """Return the blob of the running example, as far as it is drawn."""
    return encode_failure(current_build_context().data.choices).decode()


def measure_current_example() -> Any:
    """Return a key that sorts examples as the shrinker does: a smaller key is simpler."""
    return sort_key(current_build_context().data.nodes)


@contextlib.contextmanager
def replace_runner(runner: type[ConjectureRunner]) -> Iterator[None]:
    """Replace Hypothesis's search engine during the block."""
    core: Any = hypothesis.core
    with _set_attribute(core, "ConjectureRunner", runner):
        yield


@contextlib.contextmanager
def end_stalled_shrinking(calls: int) -> Iterator[None]:
    """End shrinking after so many calls in a row that find nothing simpler, during the block."""

    class StalledShrinker(Shrinker):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.max_stall = calls

    with _set_attribute(engine, "Shrinker", StalledShrinker):
        yield


@contextlib.contextmanager
def limit_shrinking(seconds: float) -> Iterator[None]:
    with _set_attribute(engine, "MAX_SHRINKING_SECONDS", seconds):
        yield


class ExampleFolder(DirectoryBasedExampleDatabase):
    """Hypothesis's own database in a folder, with a method for the path of a value."""

    def locate(self, key: bytes, value: bytes) -> Any:
        return self._value_path(key, value)
