"""A matrix file, read: what is wrong with it is said with its line."""

from __future__ import annotations

from pathlib import Path

from harness.matrix import commands
from harness.matrix.document import Document
from harness.matrix.schema import RESERVED, Chosen, Matrix, listed, nearest
from harness.releases import managed


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
