"""The constraints of a file as rules over bits: each is one rule or a few."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from harness.matrix.schema import Chosen, Constraint, Matrix, listed
from harness.matrix.space import Rule, Space

ABSENT = ""


def compiled(matrix: Matrix) -> Space:
    """A file's axes and constraints."""
    conditional = {axis for constraint in matrix.constraints for axis in constraint.applies}
    sizes = [len(values) + (axis in conditional) for axis, values in matrix.axes.items()]
    space = Space(sizes)
    names = list(matrix.axes)
    space.absent = [
        space.first[index] + size - 1 if names[index] in conditional else -1
        for index, size in enumerate(sizes)
    ]
    book = Book(matrix, space)
    return space.having(list(_rules(matrix, book)))


class Book:
    """From words to bits and back."""

    def __init__(self, matrix: Matrix, space: Space) -> None:
        self.names = list(matrix.axes)
        self.index = {name: index for index, name in enumerate(self.names)}
        self.words: list[str] = []
        self.bit: dict[tuple[str, str], int] = {}
        for index, name in enumerate(self.names):
            for value in matrix.values(name):
                self.bit[name, value] = len(self.words)
                self.words.append(value)
            if space.absent[index] >= 0:
                self.words.append(ABSENT)
        self.space = space

    def mask(self, axis: str, values: Iterable[str]) -> int:
        return sum(1 << self.bit[axis, value] for value in values)

    def all(self, axis: str) -> int:
        """Every value but absent."""
        return sum(1 << value for value in self.space.real(self.index[axis]))

    def everything(self, axis: str) -> int:
        return self.space.masks[self.index[axis]]

    def bits_of(self, values: Mapping[str, str]) -> list[int]:
        return [self.bit[axis, value] for axis, value in values.items()]

    def values_of(self, row: Iterable[int]) -> dict[str, str]:
        """A row's values by axis; one that does not apply is left out."""
        named = ((self.names[self.space.axis_of[bit]], self.words[bit]) for bit in row)
        return {axis: word for axis, word in named if word != ABSENT}


def _rules(matrix: Matrix, book: Book) -> Iterable[Rule]:
    for index, constraint in enumerate(matrix.constraints):
        for parts in _forbidden(constraint, book):
            yield _rule(parts, book, index)
    yield from _always_there(matrix, book)


def _forbidden(constraint: Constraint, book: Book) -> Iterable[dict[str, int]]:
    if constraint.applies:
        for condition, words in constraint.when.items():
            unmet = book.everything(condition) & ~book.mask(condition, listed(words))
            for axis in constraint.applies:
                yield {condition: unmet, axis: book.all(axis)}
        return
    when = _masks(constraint.when, book)
    if constraint.never:
        yield when | _masks(constraint.never, book)
    for axis, words in constraint.only.items():
        yield when | {axis: book.all(axis) & ~book.mask(axis, listed(words))}


def _always_there(matrix: Matrix, book: Book) -> Iterable[Rule]:
    """Where all conditions of an axis hold, it applies."""
    conditions: dict[str, dict[str, int]] = {}
    last: dict[str, int] = {}
    for index, constraint in enumerate(matrix.constraints):
        for axis in constraint.applies:
            held = conditions.setdefault(axis, {})
            last[axis] = index
            for condition, mask in _masks(constraint.when, book).items():
                held[condition] = held.get(condition, mask) & mask
    for axis, held in conditions.items():
        absent = book.everything(axis) & ~book.all(axis)
        yield _rule(held | {axis: absent}, book, last[axis])


def _masks(chosen: Chosen, book: Book) -> dict[str, int]:
    return {axis: book.mask(axis, listed(words)) for axis, words in chosen.items()}


def _rule(parts: Mapping[str, int], book: Book, constraint: int) -> Rule:
    axes = tuple(book.index[axis] for axis in parts)
    return Rule(tuple(parts.values()), axes, constraint)


def conflict(space: Space, values: Sequence[int]) -> list[int]:
    """Constraints that together leave no row with these values; none can be spared."""
    rules = list(space.rules)
    for constraint in sorted({rule.constraint for rule in rules}):
        fewer = [rule for rule in rules if rule.constraint != constraint]
        if not space.having(fewer).extends(values):
            rules = fewer
    return sorted({rule.constraint for rule in rules})
