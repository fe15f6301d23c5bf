"""How many examples `unfix fuzz` needs for the first failure, beside inputs drawn uniformly.

    .releases/0.5.18/bin/python -m bench.fuzzing [--record FILE]

Each guard of kv_indices and int64_indices, with its fix out, 20 seeds a side, in one process.
Fuzzing is the engine of a slice as it begins a night, with an empty database and nothing else. The
other side calls the same test with values that `random.Random` draws: from the same bounds, each
number in them as likely as any other, and no strategy, no target and no edge is anywhere. A seed
that finds nothing in 300 examples counts as 300.
"""

from __future__ import annotations

import functools
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from bench.examples import RevertedFixes
from bench.recording import make_parser, record_result

SEEDS = range(20)
MOST = 300
WANTED = 3.0
SUITES = ("suites/kv_indices", "suites/int64_indices")


# Uniform values


def a_batch(longest: int = 40, requests: int = 3, topk: int = 3) -> Callable[..., Any]:
    from fixtures.draft_batches import DraftBatch

    def draw_batch(chance: random.Random) -> Any:
        steps = chance.randint(2, 4)
        context = chance.randint(steps + 1, max(longest, 140))
        count = chance.randint(1, requests)
        return DraftBatch(
            lengths=tuple(chance.randint(1, context - steps) for _ in range(count)),
            topk=chance.randint(1, topk),
            steps=steps,
            page=chance.choice((1, 2, 4, 7, 16)),
            context=context,
            slots=count + chance.randint(0, 2),
            first_row=chance.randint(0, 5),
        )

    return draw_batch


def a_chunk(far: str) -> Callable[..., Any]:
    from fixtures.int64_indices import BOUNDARY, ChunkQuery, CombineChunk

    def draw_chunk(chance: random.Random) -> Any:
        apart = (2048, 2**16 + 8, 2**20)
        wide = chance.choice((256, *apart) if far == "rows" else apart)
        return CombineChunk(
            queries=tuple(
                ChunkQuery(chance.randint(0, 300), chance.randint(1, 3), name)
                for name in range(1, chance.randint(1, 2) + 1)
            ),
            topk=chance.randint(1 if far == "topk" else 0, 16),
            window=chance.choice((1, 2, 4, 8, 128)),  # powers of two: no other width compiles
            ratio=chance.choice((1, 4, 128)),
            before=chance.randint(0, 2 * BOUNDARY // wide + 2),
            topk_stride=wide if far == "topk" else 16,
            row_stride=wide if far == "rows" else 256,
            window_stride=wide if far == "window" else 0,
            start=chance.randint(0, 5000),
        )

    return draw_chunk


def some_keys(most: int = 3) -> Callable[..., Any]:
    from fixtures.dsv4_keys import KeyLocation, QuantisedKeys, compute_page_bytes
    from fixtures.int64_indices import BOUNDARY

    def draw_keys(chance: random.Random) -> Any:
        size = chance.choice((2, 64, 256))
        last = 2 * BOUNDARY // compute_page_bytes(size) + 2
        places = {
            KeyLocation(chance.randint(0, last), chance.randint(0, size - 1))
            for _ in range(chance.randint(1, most))
        }
        return QuantisedKeys(size, tuple(places), chance.randint(0, 9))

    return draw_keys


def some_windows(chance: random.Random) -> Any:
    from fixtures.int64_indices import BOUNDARY, WindowBatch, WindowRequest

    context = chance.randint(131_072, 2**20 + 4)
    by_row = {}
    for _ in range(chance.randint(1, 3)):
        row, asking = chance.randint(0, 2 * BOUNDARY // context + 2), chance.randint(1, 4)
        by_row[row] = WindowRequest(row, chance.randint(asking, context), asking)
    slot = chance.randint(1000, BOUNDARY - 1)
    return WindowBatch(context, tuple(by_row.values()), chance.randint(1, 7), slot)


class KeyOrder:
    """In place of `st.data()`: draws up to three of the keys, in any order."""

    def __init__(self, chance: random.Random, count: int) -> None:
        self.chance, self.count = chance, count

    def draw(self, strategy: Any, label: str = "") -> list[int]:
        return [self.chance.randrange(self.count) for _ in range(self.chance.randint(1, 3))]


def make_domains() -> dict[str, Callable[[random.Random], dict[str, Any]]]:
    """Return functions that draw the arguments of a guard, by the guard's name."""
    import torch

    from fixtures.kv_indices import ASSERTING_BACKENDS, FillMode

    def in_a_graph(chance: random.Random) -> Any:
        return chance.choice((FillMode.REPLAY, FillMode.CAPTURE))

    def batch(**bounds: int) -> Callable[[random.Random], dict[str, Any]]:
        return lambda chance: {"batch": a_batch(**bounds)(chance)}

    def batch_and_mode(chance: random.Random) -> dict[str, Any]:
        return {"batch": a_batch()(chance), "mode": in_a_graph(chance)}

    def too_small(chance: random.Random) -> dict[str, Any]:
        name, missing = chance.choice(ASSERTING_BACKENDS), chance.randint(1, 3)
        return {"name": name, "missing": missing, **batch_and_mode(chance)}

    def chunk(far: str) -> Callable[[random.Random], dict[str, Any]]:
        return lambda chance: {"chunk": a_chunk(far)(chance)}

    def far_keys(chance: random.Random) -> dict[str, Any]:
        keys = some_keys()(chance)
        kind = chance.choice((torch.int32, torch.int64))
        return {"keys": keys, "kind": kind, "data": KeyOrder(chance, len(keys.locations))}

    return {
        "test_a_graph_row_of_flashinfer_holds_what_the_last_step_writes": batch(longest=2000),
        "test_a_graph_row_of_flashinfer_mla_holds_what_the_last_step_writes": batch(longest=2000),
        "test_in_a_graph_each_branch_of_flashinfer_finds_its_slots": batch_and_mode,
        "test_in_a_graph_each_branch_of_flashinfer_mla_finds_its_slots": batch_and_mode,
        "test_a_batch_is_its_requests_one_behind_the_other": batch(requests=2, topk=2),
        "test_padding_changes_nothing_for_the_requests": batch(requests=1),
        "test_a_row_that_is_too_small_is_refused_before_it_is_written": too_small,
        "test_chosen_keys_are_read_from_a_row_past_any_boundary": chunk("topk"),
        "test_combined_rows_are_written_past_any_boundary": chunk("rows"),
        "test_given_windows_are_read_from_a_row_past_any_boundary": chunk("window"),
        "test_a_key_is_found_however_many_bytes_lie_before_it": far_keys,
        "test_where_a_key_lies_changes_nothing_of_what_it_is": lambda chance: {
            "keys": some_keys(2)(chance)
        },
        "test_ids_are_read_from_a_row_past_any_boundary": lambda chance: {
            "windows": some_windows(chance)
        },
    }


# Counting


def count_uniform_examples(
    test: Any, given: dict[str, Any], seed: int, domain: Callable[..., Any]
) -> int:
    chance = random.Random(seed)
    for count in range(1, MOST + 1):
        try:
            test.hypothesis.inner_test(**given, **domain(chance))
        except AssertionError:
            return count
    return MOST


def count_by_fuzzing(test: Any, given: dict[str, Any], seed: int) -> int:
    """Count the examples of the fuzz engine up to the first failure, with search targets."""
    import hypothesis
    import hypothesis.core
    from hypothesis import HealthCheck, Phase, settings

    from harness.runs.fuzz import search_targets
    from harness.runs.fuzz.messages import TimeSlice
    from harness.runs.fuzz.search_engine import use_fuzz_engine

    handle, seen, first = test.hypothesis, 0, 0
    inner = handle.inner_test

    @functools.wraps(inner)
    def count_example(*arguments: Any, **named: Any) -> None:
        nonlocal seen, first
        seen += 1
        search_targets.begin_example()
        try:
            inner(*arguments, **named)
        except AssertionError:
            first = first or seen
            raise
        finally:
            for label, value in search_targets.end_example().items():
                hypothesis.target(value, label=label)

    handle.inner_test = count_example
    hypothesis.core.global_force_seed = seed
    test._hypothesis_internal_use_settings = settings(
        max_examples=MOST,
        phases=(Phase.generate, Phase.target),
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=tuple(HealthCheck),
    )
    until = time.monotonic() + 3600
    time_slice = TimeSlice(0, 0, seed, 0, generate_until=until, shrink_until=until, end_after=3600)
    try:
        with use_fuzz_engine(time_slice):
            test(**given)
    except AssertionError:
        return first
    finally:
        handle.inner_test = inner
    return MOST


class EngineComparison(RevertedFixes):
    """Runs each guard with the fuzz engine and with uniform inputs."""

    def ask(self, guard: pytest.Function, given: dict[str, Any]) -> None:
        domain = make_domains()[guard.originalname]
        by_chance = [count_uniform_examples(guard.obj, given, seed, domain) for seed in SEEDS]
        by_fuzzing = [count_by_fuzzing(guard.obj, given, seed) for seed in SEEDS]
        self.found[guard.name] = compare_counts(by_chance, by_fuzzing)


def compare_counts(by_chance: list[int], by_fuzzing: list[int]) -> dict[str, Any]:
    medians = statistics.median(by_chance), statistics.median(by_fuzzing)
    return {
        "uniform": {"median": medians[0], "mean": statistics.fmean(by_chance), "counts": by_chance},
        "fuzz": {"median": medians[1], "mean": statistics.fmean(by_fuzzing), "counts": by_fuzzing},
        "ratio": round(medians[0] / medians[1], 2),
    }


def main() -> int:
    options = make_parser(__doc__).parse_args()
    comparing = EngineComparison()
    started = time.monotonic()
    code = pytest.main([*SUITES, "--device", "cpu"], [comparing])
    for name, found in comparing.found.items():
        medians = found["uniform"]["median"], found["fuzz"]["median"]
        print(f"{medians[0]:6} {medians[1]:6} {found['ratio']:6} {name}")
    ratios = [found["ratio"] for found in comparing.found.values()]
    mean = statistics.geometric_mean(ratios) if ratios else 0.0
    reached = sum(ratio >= WANTED for ratio in ratios)
    print(f"{reached} of {len(ratios)} are {WANTED:g} or more; geometric mean {mean:.2f}")
    result = {
        "seconds": round(time.monotonic() - started),
        "most": MOST,
        "geometric mean": round(mean, 2),
        "guards": comparing.found,
    }
    record_result(result, options.record, say=False)
    return int(code) or int(not ratios)


if __name__ == "__main__":
    sys.exit(main())
