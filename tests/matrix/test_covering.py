"""All allowed combinations occur, in few rows: counted from the rows by brute force."""

from __future__ import annotations

from itertools import combinations, product
from pathlib import Path

import pytest
from fixture_types import Patch
from test_constraints import breaks_rule, draw_space, list_rows
from writing import TREE, WHOLE_PAGES, get_refusal, make_plan, make_text

from harness.matrices.covering import covering_array, row_shrinker
from harness.matrices.covering.covering_array import CoverageGroups
from harness.matrices.covering.row_space import RowSpace, ValueRow

Values = frozenset[int]
PATIENCE = row_shrinker.PATIENCE


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: Patch) -> None:
    """Shorten the search: these tests do not need the smallest size."""
    monkeypatch.setattr(row_shrinker, "PATIENCE", 30_000)


Rows = list[ValueRow] | list[tuple[int, ...]]


def collect_tuples(found: Rows, groups: CoverageGroups) -> set[Values]:
    """Return the tuples of each group that occur in some row."""
    return {
        frozenset(chosen)
        for row in found
        for axes, strength in groups
        for chosen in combinations([row[axis] for axis in axes], strength)
    }


def group_pairs(space: RowSpace) -> CoverageGroups:
    return [(list(space.axes), 2)]


@pytest.mark.parametrize("seed", range(30))
def test_each_possible_tuple_has_a_row_and_no_row_breaks_a_rule(seed: int) -> None:
    space = draw_space(seed)
    groups: CoverageGroups = [(list(space.axes), 2), ([0, 2, 4], 3), ([1, 3], 1)]
    found = covering_array.build_covering_rows(space, groups, [], seed).rows
    assert not any(breaks_rule(space, tuple(row)) for row in found)
    assert collect_tuples(found, groups) == collect_tuples(list_rows(space), groups)


def test_a_tuple_without_a_row_is_counted_as_uncovered() -> None:
    space = RowSpace([3, 3, 2])
    found = covering_array.build_covering_rows(space, group_pairs(space), [], 0).rows
    for left_out in range(len(found)):
        rest = found[:left_out] + found[left_out + 1 :]
        counted = covering_array.count_group_tuples(space, [0, 1, 2], 2, rest)
        assert counted.covered == len(collect_tuples(rest, group_pairs(space))) < counted.allowed


@pytest.mark.parametrize("seed", range(10))
def test_impossible_tuples_are_counted_apart(seed: int) -> None:
    space = draw_space(seed)
    counted = covering_array.count_group_tuples(space, list(space.axes), 2, [])
    assert counted.allowed == len(collect_tuples(list_rows(space), group_pairs(space)))
    everything = collect_tuples(
        list(product(*map(space.list_values, space.axes))), group_pairs(space)
    )
    assert counted.allowed + len(counted.forbidden_tuples) == len(everything)


@pytest.mark.parametrize("seed", [seed for seed in range(12) if list_rows(draw_space(seed))])
def test_required_values_have_a_row_of_their_own(seed: int) -> None:
    space = draw_space(seed)
    rows = list_rows(space)
    keep = [list(rows[0]), list(rows[-1])[:2], [rows[len(rows) // 2][3]]]
    found = covering_array.build_covering_rows(space, group_pairs(space), keep, seed)
    assert len(found.required_rows) == 3
    for values, row in zip(keep, found.required_rows, strict=True):
        assert set(values) <= set(row)
    assert collect_tuples(found.rows, group_pairs(space)) == collect_tuples(
        rows, group_pairs(space)
    )


def test_a_group_is_covered_as_it_asks(tmp_path: Path) -> None:
    more = (
        "strength:\n  default: pairs\n  groups:\n"
        "    - {axes: [release, kv, page], strength: all}\n"
        "    - {axes: [kv, page, speculative, topk], strength: triples}\n"
    )
    found = make_plan(tmp_path, make_text(constraints=(TREE, WHOLE_PAGES), more=more))
    counts = [(group.strength, group.covered, group.forbidden) for group in found.coverage]
    assert counts == [(2, 37, 3), (3, 6, 2), (3, 20, 12)]
    assert all(group.covered == group.tuples for group in found.coverage)


def test_a_fixed_cell_is_completed_and_says_why(tmp_path: Path) -> None:
    cells = "cells: [{values: {kv: fp8, topk: 4}, because: it was slow once}]\n"
    found = make_plan(tmp_path, make_text(constraints=(TREE, WHOLE_PAGES), more=cells))
    (fixed,) = [cell for cell in found.cells if cell.why != "covering"]
    assert fixed.why == "it was slow once"
    assert fixed.values.items() >= {"kv": "fp8", "topk": "4", "speculative": "EAGLE"}.items()
    assert set(fixed.values) == {"release", "kv", "page", "speculative", "topk"}


def test_a_cell_that_asks_for_less_than_another_is_served_by_it(tmp_path: Path) -> None:
    cells = "cells:\n  - {values: {topk: 4}, because: some}\n"
    cells += "  - {values: {topk: 4, kv: fp8}, because: more}\n"
    found = make_plan(tmp_path, make_text(constraints=(TREE,), more=cells))
    assert [cell.why for cell in found.cells if cell.why != "covering"] == ["some; more"]


def test_too_many_tuples_of_a_file_are_refused(tmp_path: Path) -> None:
    axes = "\naxes:\n" + "".join(f"  a{n}: [{', '.join('abcdefghi')}]\n" for n in range(6))
    works = "run: {x: {command: 'serve {a0}{a1}{a2}{a3}{a4}{a5}'}}\n"
    refusal = get_refusal(tmp_path, make_text(axes=axes, run=works, more="strength: all\n"))
    assert refusal.startswith("531441 tuples would have to be covered")
