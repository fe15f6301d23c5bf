"""Constraints compiled to rules over bits.

A row has one bit for each axis value. A rule is a mask for each of some axes and forbids every row
that has a bit in all of its masks. `{when: {kv: fp8}, only: {page: 16}}` with kv: auto=bit 0,
fp8=bit 1 and page: 1=bit 2, 16=bit 3 becomes the rule (kv: 0b0010, page: 0b0100): no row with fp8
and page 1. An axis of an `applies` constraint has one value more, "absent".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from harness.matrices.covering.row_space import RowRule, RowSpace
from harness.matrices.schema import AxisConstraint, ChosenValues, MatrixFile, to_list

ABSENT_VALUE = ""


def compile_constraints(matrix: MatrixFile) -> RowSpace:
    """Compile a file's axes and constraints to the space of allowed rows."""
    conditional = {axis for constraint in matrix.constraints for axis in constraint.applies}
    sizes = [len(values) + (axis in conditional) for axis, values in matrix.axes.items()]
    space = RowSpace(sizes)
    names = list(matrix.axes)
    space.absent_bits = [
        space.first_bit[index] + size - 1 if names[index] in conditional else -1
        for index, size in enumerate(sizes)
    ]
    encoding = BitEncoding(matrix, space)
    return space.with_rules(list(_make_rules(matrix, encoding)))


class BitEncoding:
    """Translates axis values to bits and back."""

    def __init__(self, matrix: MatrixFile, space: RowSpace) -> None:
        self.axis_names = list(matrix.axes)
        self.axis_index = {name: index for index, name in enumerate(self.axis_names)}
        self.value_of_bit: list[str] = []
        self.bit_of_value: dict[tuple[str, str], int] = {}
        for index, name in enumerate(self.axis_names):
            for value in matrix.list_values(name):
                self.bit_of_value[name, value] = len(self.value_of_bit)
                self.value_of_bit.append(value)
            if space.absent_bits[index] >= 0:
                self.value_of_bit.append(ABSENT_VALUE)
        self.space = space

    def make_mask(self, axis: str, values: Iterable[str]) -> int:
        return sum(1 << self.bit_of_value[axis, value] for value in values)

    def mask_present_values(self, axis: str) -> int:
        """Return the mask of every value except absent."""
        return sum(1 << value for value in self.space.list_present_values(self.axis_index[axis]))

    def mask_all_values(self, axis: str) -> int:
        return self.space.axis_masks[self.axis_index[axis]]

    def to_bits(self, values: Mapping[str, str]) -> list[int]:
        return [self.bit_of_value[axis, value] for axis, value in values.items()]

    def to_values(self, row: Iterable[int]) -> dict[str, str]:
        """Return the values of a row by axis; an axis that does not apply is left out."""
        named = ((self.axis_names[self.space.axis_of[bit]], self.value_of_bit[bit]) for bit in row)
        return {axis: word for axis, word in named if word != ABSENT_VALUE}


def _make_rules(matrix: MatrixFile, encoding: BitEncoding) -> Iterable[RowRule]:
    for index, constraint in enumerate(matrix.constraints):
        for parts in _list_forbidden_masks(constraint, encoding):
            yield _make_rule(parts, encoding, index)
    yield from _forbid_absence(matrix, encoding)


def _list_forbidden_masks(
    constraint: AxisConstraint, encoding: BitEncoding
) -> Iterable[dict[str, int]]:
    if constraint.applies:
        for condition, words in constraint.when.items():
            unmet = encoding.mask_all_values(condition) & ~encoding.make_mask(
                condition, to_list(words)
            )
            for axis in constraint.applies:
                yield {condition: unmet, axis: encoding.mask_present_values(axis)}
        return
    when = _make_masks(constraint.when, encoding)
    if constraint.never:
        yield when | _make_masks(constraint.never, encoding)
    for axis, words in constraint.only.items():
        yield when | {
            axis: encoding.mask_present_values(axis) & ~encoding.make_mask(axis, to_list(words))
        }


def _forbid_absence(matrix: MatrixFile, encoding: BitEncoding) -> Iterable[RowRule]:
    """Make rules: an axis is not absent where all of its `applies` conditions are met."""
    conditions: dict[str, dict[str, int]] = {}
    last: dict[str, int] = {}
    for index, constraint in enumerate(matrix.constraints):
        for axis in constraint.applies:
            masks = conditions.setdefault(axis, {})
            last[axis] = index
            for condition, mask in _make_masks(constraint.when, encoding).items():
                masks[condition] = masks.get(condition, mask) & mask
    for axis, masks in conditions.items():
        absent = encoding.mask_all_values(axis) & ~encoding.mask_present_values(axis)
        yield _make_rule(masks | {axis: absent}, encoding, last[axis])


def _make_masks(choice: ChosenValues, encoding: BitEncoding) -> dict[str, int]:
    return {axis: encoding.make_mask(axis, to_list(words)) for axis, words in choice.items()}


def _make_rule(masks: Mapping[str, int], encoding: BitEncoding, constraint: int) -> RowRule:
    axes = tuple(encoding.axis_index[axis] for axis in masks)
    return RowRule(tuple(masks.values()), axes, constraint)


def find_conflict(space: RowSpace, values: Sequence[int]) -> list[int]:
    """Find a minimal set of constraints that together forbid these values."""
    rules = list(space.rules)
    for constraint in sorted({rule.constraint for rule in rules}):
        fewer = [rule for rule in rules if rule.constraint != constraint]
        if not space.with_rules(fewer).can_extend(values):
            rules = fewer
    return sorted({rule.constraint for rule in rules})
