"""A matrix file: its axes, what of them may not meet, how much is covered, and what is run.

name: pages
axes:
  release: [0.5.16, 0.5.18]
  kv: {auto: "", fp8: --kv-cache-dtype fp8_e4m3}
  page: {1: "", 16: --page-size 16}
  speculative: [none, EAGLE]
  topk: [1, 4]
constraints:
  - {when: {speculative: EAGLE}, applies: [topk], because: only a tree has branches}
  - {when: {kv: fp8}, only: {page: 16}, because: this kernel reads whole pages}
run:
  pages: {kind: eval, command: "--release {release} -- {words}"}
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from harness.matrix.document import Document
from harness.matrix.values import Needs

Text = Annotated[str, Meta(pattern=r"\S")]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z_][\w.-]*\Z")]
Words = str | list[str]  # one value, or any of several
Partial = dict[str, str]
Chosen = dict[str, Words]
STRENGTHS = {"pairs": 2, "triples": 3}
RESERVED = "words"


class Added(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a value of an axis asks of a machine; of several the most counts."""

    cpus: Annotated[float, Meta(ge=0)] = 0.0
    gpus: Annotated[float, Meta(ge=0)] = 0.0
    gpu: str = ""
    custom: dict[str, float] = {}


class Value(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a value of an axis adds to a command."""

    words: str = ""
    environment: dict[str, str] = {}
    needs: Added = Added()


class Constraint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What may not be together, or which axes are there at all, and why."""

    because: Text
    when: Chosen = {}
    never: Chosen = {}
    only: Chosen = {}
    applies: list[str] = []


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Axes that are covered more, or less, than the others."""

    axes: Annotated[list[str], Meta(min_length=1)]
    strength: str


class Strength(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many values at a time have to meet."""

    default: str = "pairs"
    groups: list[Group] = []


class Fixed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cell that is in, whatever is covered without it."""

    values: Annotated[Partial, Meta(min_length=1)]
    because: Text


class Work(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is run in a cell."""

    command: str
    kind: Literal["suites", "eval", "command"] = "command"
    when: Chosen = {}
    needs: Needs = Needs()
    limit: Annotated[float, Meta(gt=0)] = 3600.0
    environment: dict[str, str] = {}


class Matrix(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of one file."""

    name: Name
    axes: Annotated[dict[Name, list[str] | dict[str, str | Value]], Meta(min_length=1)]
    run: Annotated[dict[Name, Work], Meta(min_length=1)]
    constraints: list[Constraint] = []
    strength: str | Strength = "pairs"
    seed: int = 0
    seeds: bool = False
    cells: list[Fixed] = []

    def values(self, axis: str) -> list[str]:
        return list(self.axes[axis])

    def value(self, axis: str, name: str) -> Value:
        given = self.axes[axis]
        if isinstance(given, list):
            return Value()
        one = given[name]
        return Value(words=one) if isinstance(one, str) else one

    @property
    def groups(self) -> list[tuple[list[str], int]]:
        """The groups that are covered, with their strengths: first all axes, then the file's."""
        whole = Strength(self.strength) if isinstance(self.strength, str) else self.strength
        everything = Group(list(self.axes), whole.default)
        return [
            (group.axes, strength_of(group.strength, len(group.axes)))
            for group in (everything, *whole.groups)
        ]


def strength_of(word: str, axes: int) -> int:
    """How many axes at a time; 0 for a word that is none."""
    if word == "all":
        return axes
    return STRENGTHS.get(word) or (int(word) if word.isdecimal() else 0)


def read(file: Path) -> Matrix:
    """A matrix file, or what is wrong with it and where."""
    document = Document(file)
    matrix = document.shaped(Matrix)
    _check_axes(document, matrix)
    _check_constraints(document, matrix)
    _check_strength(document, matrix)
    _check_cells(document, matrix)
    _check_works(document, matrix)
    return matrix


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of a sentence about a word that nobody knows."""
    there = list(known)
    close = difflib.get_close_matches(word, there, 1, 0.5)
    return f"; did you mean {close[0]}?" if close else f"; there are {', '.join(there)}"


def listed(words: Words) -> list[str]:
    return [words] if isinstance(words, str) else words


def _check_axes(document: Document, matrix: Matrix) -> None:
    for axis, given in matrix.axes.items():
        here = ("axes", axis)
        if not given:
            raise document.error(f"the axis {axis} has no values", *here)
        if axis == RESERVED:
            raise document.error(
                f"no axis can be called {RESERVED}: it stands for their words", *here
            )
        values = list(given)
        doubled = next((value for value in values if values.count(value) > 1), None)
        if doubled is not None:
            raise document.error(f"the axis {axis} has {doubled!r} twice", *here)
        if any(not value.strip() for value in values):
            raise document.error(f"the axis {axis} has an empty value", *here)
    if "release" in matrix.axes:
        _check_releases(document, matrix)


def _check_releases(document: Document, matrix: Matrix) -> None:
    from harness.releases import managed

    known = [release.name for release in managed.all_releases()]
    for index, name in enumerate(matrix.values("release")):
        if name not in known and name != "current":
            given = matrix.axes["release"]
            step = index if isinstance(given, list) else name
            said = f"'{name}' is no managed release{nearest(name, known)}"
            raise document.error(said, "axes", "release", step)


def _check_axis(document: Document, matrix: Matrix, axis: str, *here: str | int) -> None:
    if axis not in matrix.axes:
        raise document.error(f"no axis is called {axis}{nearest(axis, matrix.axes)}", *here)


def _check_chosen(document: Document, matrix: Matrix, chosen: Chosen, *here: str | int) -> None:
    for axis, words in chosen.items():
        _check_axis(document, matrix, axis, *here, axis)
        if not listed(words):
            raise document.error(f"{axis}: no value is named", *here, axis)
        for value in listed(words):
            if value not in matrix.axes[axis]:
                said = f"the axis {axis} has no value {value!r}"
                said += nearest(value, matrix.values(axis))
                raise document.error(said, *here, axis)


def _check_constraints(document: Document, matrix: Matrix) -> None:
    for index, constraint in enumerate(matrix.constraints):
        here = ("constraints", index)
        said = [word for word in ("never", "only", "applies") if getattr(constraint, word)]
        if len(said) != 1:
            raise document.error("a constraint is one of never, only, or applies", *here)
        if said == ["applies"] and not constraint.when:
            raise document.error("applies: says which axes are there `when:` others have", *here)
        for word in ("when", "never", "only"):
            _check_chosen(document, matrix, getattr(constraint, word), *here, word)
        for axis in constraint.applies:
            _check_axis(document, matrix, axis, *here, "applies")
        both = set(constraint.when) & {*constraint.never, *constraint.only, *constraint.applies}
        if both:
            said_twice = f"{', '.join(sorted(both))}: on both sides of one constraint"
            raise document.error(said_twice, *here)


def _check_strength(document: Document, matrix: Matrix) -> None:
    for index, (axes, strength) in enumerate(matrix.groups):
        here: tuple[str | int, ...] = ("strength",)
        if index:
            here = ("strength", "groups", index - 1)
        for axis in axes:
            _check_axis(document, matrix, axis, *here, "axes")
        if len(set(axes)) < len(axes):
            raise document.error("a group has an axis twice", *here)
        if not strength:
            raise document.error("a strength is a number, pairs, triples, or all", *here)
        if strength > len(axes):
            said = f"a strength of {strength} over {len(axes)}: {', '.join(axes)}"
            raise document.error(said, *here)


def _check_cells(document: Document, matrix: Matrix) -> None:
    for index, fixed in enumerate(matrix.cells):
        _check_chosen(document, matrix, dict(fixed.values), "cells", index, "values")
        for earlier, other in enumerate(matrix.cells[:index]):
            if other.values == fixed.values:
                said = f"cells {earlier + 1} and {index + 1} are alike"
                raise document.error(said, "cells", index)


def _check_works(document: Document, matrix: Matrix) -> None:
    from harness.matrix import commands

    for name, work in matrix.run.items():
        _check_chosen(document, matrix, work.when, "run", name, "when")
        problem = commands.problem(work, matrix)
        if problem:
            raise document.error(f"{name}: {problem}", "run", name, "command")
    unused = commands.without_effect(matrix)
    if unused:
        said = f"the axis {unused} changes nothing of what is run: name it as {{{unused}}}, give "
        said += "its values words and put {words} into a command, or leave it out"
        raise document.error(said, "axes", unused)
