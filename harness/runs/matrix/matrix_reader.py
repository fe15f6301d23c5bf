"""A matrix file, read: what is wrong with it is said with its line."""

from __future__ import annotations

from pathlib import Path

from harness.releases import managed_releases
from harness.runs.matrix import command_template
from harness.runs.matrix.matrix_document import MatrixDocument
from harness.runs.matrix.matrix_schema import (
    RESERVED_AXIS,
    ChosenValues,
    MatrixSpec,
    suggest_nearest,
    to_list,
)


def read_matrix(file: Path) -> MatrixSpec:
    """A matrix file, or what is wrong with it and where."""
    document = MatrixDocument(file)
    matrix = document.convert_to(MatrixSpec)
    _check_axes(document, matrix)
    _check_constraints(document, matrix)
    _check_strength(document, matrix)
    _check_cells(document, matrix)
    _check_works(document, matrix)
    return matrix


def _check_axes(document: MatrixDocument, matrix: MatrixSpec) -> None:
    for axis, given in matrix.axes.items():
        here = ("axes", axis)
        if not given:
            raise document.make_error_at(f"the axis {axis} has no values", *here)
        if axis == RESERVED_AXIS:
            raise document.make_error_at(
                f"no axis can be called {RESERVED_AXIS}: it stands for their words", *here
            )
        values = list(given)
        doubled = next((value for value in values if values.count(value) > 1), None)
        if doubled is not None:
            raise document.make_error_at(f"the axis {axis} has {doubled!r} twice", *here)
        if any(not value.strip() for value in values):
            raise document.make_error_at(f"the axis {axis} has an empty value", *here)
    if "release" in matrix.axes:
        _check_releases(document, matrix)


def _check_releases(document: MatrixDocument, matrix: MatrixSpec) -> None:
    known = [release.name for release in managed_releases.list_releases()]
    for index, name in enumerate(matrix.list_values("release")):
        if name not in known and name != "current":
            given = matrix.axes["release"]
            step = index if isinstance(given, list) else name
            said = f"'{name}' is no managed release{suggest_nearest(name, known)}"
            raise document.make_error_at(said, "axes", "release", step)


def _check_axis(document: MatrixDocument, matrix: MatrixSpec, axis: str, *steps: str | int) -> None:
    if axis not in matrix.axes:
        raise document.make_error_at(
            f"no axis is called {axis}{suggest_nearest(axis, matrix.axes)}", *steps
        )


def _check_choice(
    document: MatrixDocument, matrix: MatrixSpec, choice: ChosenValues, *steps: str | int
) -> None:
    for axis, words in choice.items():
        _check_axis(document, matrix, axis, *steps, axis)
        if not to_list(words):
            raise document.make_error_at(f"{axis}: no value is named", *steps, axis)
        for value in to_list(words):
            if value not in matrix.axes[axis]:
                said = f"the axis {axis} has no value {value!r}"
                said += suggest_nearest(value, matrix.list_values(axis))
                raise document.make_error_at(said, *steps, axis)


def _check_constraints(document: MatrixDocument, matrix: MatrixSpec) -> None:
    for index, constraint in enumerate(matrix.constraints):
        here = ("constraints", index)
        said = [word for word in ("never", "only", "applies") if getattr(constraint, word)]
        if len(said) != 1:
            raise document.make_error_at("a constraint is one of never, only, or applies", *here)
        if said == ["applies"] and not constraint.when:
            raise document.make_error_at(
                "applies: says which axes are there `when:` others have", *here
            )
        for word in ("when", "never", "only"):
            _check_choice(document, matrix, getattr(constraint, word), *here, word)
        for axis in constraint.applies:
            _check_axis(document, matrix, axis, *here, "applies")
        both = set(constraint.when) & {*constraint.never, *constraint.only, *constraint.applies}
        if both:
            said_twice = f"{', '.join(sorted(both))}: on both sides of one constraint"
            raise document.make_error_at(said_twice, *here)


def _check_strength(document: MatrixDocument, matrix: MatrixSpec) -> None:
    for index, (axes, strength) in enumerate(matrix.groups):
        here: tuple[str | int, ...] = ("strength",)
        if index:
            here = ("strength", "groups", index - 1)
        for axis in axes:
            _check_axis(document, matrix, axis, *here, "axes")
        if len(set(axes)) < len(axes):
            raise document.make_error_at("a group has an axis twice", *here)
        if not strength:
            raise document.make_error_at("a strength is a number, pairs, triples, or all", *here)
        if strength > len(axes):
            said = f"a strength of {strength} over {len(axes)}: {', '.join(axes)}"
            raise document.make_error_at(said, *here)


def _check_cells(document: MatrixDocument, matrix: MatrixSpec) -> None:
    for index, fixed in enumerate(matrix.cells):
        _check_choice(document, matrix, dict(fixed.values), "cells", index, "values")
        for earlier, other in enumerate(matrix.cells[:index]):
            if other.values == fixed.values:
                said = f"cells {earlier + 1} and {index + 1} are alike"
                raise document.make_error_at(said, "cells", index)


def _check_works(document: MatrixDocument, matrix: MatrixSpec) -> None:
    for name, work in matrix.run.items():
        _check_choice(document, matrix, work.when, "run", name, "when")
        problem = command_template.find_template_problem(work, matrix)
        if problem:
            raise document.make_error_at(f"{name}: {problem}", "run", name, "command")
    unused = command_template.find_unused_axis(matrix)
    if unused:
        said = f"the axis {unused} changes nothing of what is run: name it as {{{unused}}}, give "
        said += "its values words and put {words} into a command, or leave it out"
        raise document.make_error_at(said, "axes", unused)
