"""Constraints as rules: their effect is compared with an enumeration of all rows."""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path

import pytest
from writing import TREE, WHOLE_PAGES, get_refusal, make_plan, make_text, read_spec

from harness.matrices import constraint_rules
from harness.matrices.constraint_rules import BitEncoding
from harness.matrices.covering.row_space import RowRule, RowSpace


def draw_space(seed: int) -> RowSpace:
    """Draw a space of five axes with some rules over two or three of them."""
    generator = random.Random(seed)
    plain = RowSpace([generator.randint(2, 4) for _ in range(5)])
    rules = []
    for number in range(generator.randint(1, 6)):
        axes = generator.sample(range(5), generator.choice([2, 2, 3]))
        values = [[v for v in plain.list_values(a) if generator.random() < 0.5] for a in axes]
        masks = [sum(1 << value for value in some) for some in values]
        rules.append(RowRule(tuple(masks), tuple(axes), number))
    return plain.with_rules(rules)


def breaks_rule(space: RowSpace, row: tuple[int, ...]) -> bool:
    """Check the definition of a rule, value by value."""

    def forbids(rule: RowRule) -> bool:
        pairs = zip(rule.masks, rule.axes, strict=True)
        return all(mask >> row[axis] & 1 for mask, axis in pairs)

    return any(map(forbids, space.rules))


def list_rows(space: RowSpace) -> list[tuple[int, ...]]:
    return [r for r in product(*map(space.list_values, space.axes)) if not breaks_rule(space, r)]


@pytest.mark.parametrize("seed", range(12))
def test_a_pair_extends_exactly_if_a_row_has_it(seed: int) -> None:
    space = draw_space(seed)
    rows = list_rows(space)
    for one, other in product(range(len(space.axis_of)), repeat=2):
        if space.axis_of[one] < space.axis_of[other]:
            is_in_a_row = any(one in row and other in row for row in rows)
            assert space.can_extend([one, other]) == is_in_a_row


@pytest.mark.parametrize("seed", range(12))
def test_each_constraint_of_a_conflict_is_needed(seed: int) -> None:
    space = draw_space(seed)
    for values in product(space.list_values(0), space.list_values(1), space.list_values(2)):
        if space.can_extend(values):
            continue
        core = constraint_rules.find_conflict(space, values)
        rules = [rule for rule in space.rules if rule.constraint in core]
        assert not space.with_rules(rules).can_extend(values)
        for spared in core:
            assert space.with_rules([r for r in rules if r.constraint != spared]).can_extend(values)


def values_of(tmp_path: Path, *constraints: str) -> list[dict[str, str]]:
    matrix = read_spec(tmp_path, make_text(constraints=constraints))
    space = constraint_rules.compile_constraints(matrix)
    book = BitEncoding(matrix, space)
    return [book.to_values(row) for row in list_rows(space)]


def test_an_axis_applies_where_its_condition_holds_and_nowhere_else(tmp_path: Path) -> None:
    for values in values_of(tmp_path, TREE):
        assert ("topk" in values) == (values["speculative"] == "EAGLE")


def test_two_conditions_of_one_axis_must_both_hold(tmp_path: Path) -> None:
    also = "{when: {page: 1}, applies: [topk], because: x}"
    for values in values_of(tmp_path, TREE, also):
        both = values["speculative"] == "EAGLE" and values["page"] == "1"
        assert ("topk" in values) == both


def test_an_axis_does_not_apply_where_the_axis_of_its_condition_does_not(tmp_path: Path) -> None:
    found = values_of(tmp_path, TREE, "{when: {topk: 4}, applies: [page], because: x}")
    for values in found:
        assert ("page" in values) == (values.get("topk") == "4")
    assert {"topk", "page"} <= {axis for values in found for axis in values}


def test_only_forbids_other_values_of_an_applicable_axis(tmp_path: Path) -> None:
    one = "{when: {kv: fp8}, only: {topk: 4, page: 16}, because: x}"
    found = values_of(tmp_path, TREE, one)
    assert {v["page"] for v in found if v["kv"] == "fp8"} == {"16"}
    assert {v.get("topk") for v in found if v["kv"] == "fp8"} == {None, "4"}
    assert {v.get("topk") for v in found if v["kv"] == "auto"} == {None, "1", "4"}


def test_never_forbids_what_is_together_and_no_more(tmp_path: Path) -> None:
    one = "{when: {kv: fp8, page: [1, 16]}, never: {speculative: EAGLE}, because: x}"
    found = values_of(tmp_path, TREE, one)
    assert {v["speculative"] for v in found if v["kv"] == "fp8"} == {"none"}
    assert {v["speculative"] for v in found if v["kv"] == "auto"} == {"none", "EAGLE"}


def test_every_cell_of_a_plan_keeps_the_constraints(tmp_path: Path) -> None:
    cells = make_plan(tmp_path, make_text(constraints=(TREE, WHOLE_PAGES))).cells
    assert {c.values["page"] for c in cells if c.values["kv"] == "fp8"} == {"16"}
    assert {c.values["page"] for c in cells if c.values["kv"] == "auto"} == {"1", "16"}


def test_constraints_that_leave_nothing_are_named_and_no_others(tmp_path: Path) -> None:
    refusal = get_refusal(
        tmp_path,
        make_text(
            constraints=(
                TREE,
                "{only: {kv: fp8}, because: the first}",
                WHOLE_PAGES,
                "{when: {page: 16}, never: {release: [0.5.16, 0.5.18]}, because: the last}",
            )
        ),
    )
    assert refusal == (
        "small.yaml: no cell is left by constraint 2 (the first, line 10); "
        "constraint 3 (this kernel reads whole pages, line 11); constraint 4 (the last, line 12)"
    )


def test_a_fixed_cell_that_a_constraint_forbids_is_refused_by_its_name(tmp_path: Path) -> None:
    cells = "cells: [{values: {kv: fp8, page: 1}, because: x}]\n"
    refusal = get_refusal(tmp_path, make_text(constraints=(TREE, WHOLE_PAGES), more=cells))
    constraint = "constraint 2 (this kernel reads whole pages, line 10)"
    assert refusal == f"small.yaml:11: cell 1 (kv fp8, page 1) is forbidden by {constraint}"


def test_the_tuples_that_one_constraint_alone_forbids_are_counted(tmp_path: Path) -> None:
    # The first rule excludes only kv fp8 with page 1; the second, topk without EAGLE.
    dropped = make_plan(tmp_path, make_text(constraints=(WHOLE_PAGES, TREE))).dropped
    assert [one.tuples for one in dropped] == [1, 2]
    reasons = ["this kernel reads whole pages", "only a tree has branches"]
    assert [one.because for one in dropped] == reasons
    assert dropped[0].constraint == "when kv fp8: only page 16"
    assert dropped[1].constraint == "topk only when speculative EAGLE"
