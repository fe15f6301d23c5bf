"""How many examples a guard needs to find its bug: the median over 20 seeds, for every cell.

    .releases/0.5.18/bin/python -m bench.run examples [SUITES …]

Each guard runs on its buggy side with one seed after the other, without shrinking, and stops at the
first failing example. A seed that finds nothing in 500 counts as 500.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import statistics
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from bench.measuring import Result
from harness.guards import plugin
from harness.guards.cells import GUARDED_STATUS, Side
from harness.guards.sides import SideAttempt, choose_side

SEEDS = range(20)
MOST = 500
WANTED = 20


class ExampleCount:
    """A pytest plugin that counts each guard's examples with its fix reverted, seed by seed."""

    def __init__(self) -> None:
        self.found: dict[str, list[int]] = {}

    def pytest_configure(self, config: pytest.Config) -> None:
        config.stash[plugin.RUNS_CELLS] = True

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if GUARDED_STATUS in item.stash]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        attempt = SideAttempt(Side.BUGGY, lambda _: contextlib.nullcontext())
        with choose_side(item.config, attempt):
            return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> object:
        arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
        test = pyfuncitem.obj
        self.found[pyfuncitem.nodeid] = [count_examples(test, arguments, seed) for seed in SEEDS]
        return True


def count_examples(test: Any, arguments: dict[str, Any], seed: int) -> int:
    """Count the examples of a seed up to the first that fails."""
    # Imported here, because pytest rewrites Hypothesis when it loads it.
    import hypothesis.core
    from hypothesis import HealthCheck, Phase, settings

    handle = test.hypothesis
    inner = handle.inner_test
    example_count = 0

    @functools.wraps(inner)
    def count_example(*args: Any, **named: Any) -> Any:
        nonlocal example_count
        example_count += 1
        return inner(*args, **named)

    handle.inner_test = count_example
    hypothesis.core.global_force_seed = seed
    test._hypothesis_internal_use_settings = settings(
        max_examples=MOST,
        phases=(Phase.generate,),
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=tuple(HealthCheck),
    )
    try:
        test(**arguments)
    except AssertionError:
        # Without shrinking, Hypothesis runs the failing example once more for its report.
        return max(1, example_count - 1)
    finally:
        handle.inner_test = inner
    return MOST


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("suites", nargs="*", default=["suites"])


def measure_case(options: argparse.Namespace) -> Iterator[Result]:
    counting = ExampleCount()
    code = pytest.main([*options.suites, "--device", "cpu"], [counting])
    medians = {name: statistics.median(counts) for name, counts in counting.found.items()}
    examples = {
        name: {"median": medians[name], "counts": counts} for name, counts in counting.found.items()
    }
    slow = [name for name, median in medians.items() if median > WANTED]
    summary = {"medians": medians, f"above {WANTED}": slow}
    yield Result({"examples": examples}, not slow and not code, summary)
