"""Checks of a matrix's axes that the schema cannot make; every error names its line."""

from __future__ import annotations

from pathlib import Path

from harness.core.yaml_document import YamlDocument, suggest_nearest
from harness.matrices import reader
from harness.matrices.schema import RESERVED_AXIS, ChosenValues, MatrixFile, to_list
from harness.releases import managed_releases
from harness.runs.matrix import command_template

Step = str | int  # a key, or an index into a list


def read_matrix(file: Path) -> tuple[YamlDocument, MatrixFile]:
    """Read the axes of a file; raise with the first problem and its line."""
    document, matrix = reader.read_matrix_file(file, reader.COVERED)
    checks = MatrixChecks(document, matrix)
    checks.check_axes()
    checks.check_constraints()
    checks.check_strength()
    checks.check_cells()
    checks.check_works()
    return document, matrix


class MatrixChecks:
    """The checks of one file: unknown names, duplicates, and axes without effect."""

    def __init__(self, document: YamlDocument, matrix: MatrixFile) -> None:
        self.document = document
        self.matrix = matrix

    def fail(self, problem: str, *steps: Step) -> None:
        raise self.document.make_error_at(problem, *steps)

    def check_axes(self) -> None:
        for axis in self.matrix.axes:
            values = self.matrix.list_values(axis)
            problem = ""
            if not values:
                problem = f"the axis {axis} has no values"
            elif axis == RESERVED_AXIS:
                problem = f"no axis can be called {RESERVED_AXIS}: it stands for their arguments"
            elif doubles := [value for value in values if values.count(value) > 1]:
                problem = f"the axis {axis} has {doubles[0]!r} twice"
            elif not all(value.strip() for value in values):
                problem = f"the axis {axis} has an empty value"
            if problem:
                self.fail(problem, "axes", axis)
        if "release" in self.matrix.axes:
            self._check_releases()

    def _check_releases(self) -> None:
        known = [release.name for release in managed_releases.list_known_releases()]
        for index, name in enumerate(self.matrix.list_values("release")):
            if name not in known and name != "current" and not managed_releases.is_path(name):
                step = index if isinstance(self.matrix.axes["release"], list) else name
                problem = f"'{name}' is no managed release{suggest_nearest(name, known)}"
                self.fail(problem, "axes", "release", step)

    def _check_axis_name(self, axis: str, *steps: Step) -> None:
        if axis not in self.matrix.axes:
            self.fail(f"no axis is called {axis}{suggest_nearest(axis, self.matrix.axes)}", *steps)

    def _check_choice(self, choice: ChosenValues, *steps: Step) -> None:
        for axis, chosen in choice.items():
            self._check_axis_name(axis, *steps, axis)
            if not to_list(chosen):
                self.fail(f"{axis}: no value is named", *steps, axis)
            values = self.matrix.list_values(axis)
            for value in to_list(chosen):
                if value not in values:
                    nearest = suggest_nearest(value, values)
                    self.fail(f"the axis {axis} has no value {value!r}{nearest}", *steps, axis)

    def check_constraints(self) -> None:
        for index, constraint in enumerate(self.matrix.constraints):
            steps = ("constraints", index)
            kinds = [key for key in ("never", "only", "applies") if getattr(constraint, key)]
            if len(kinds) != 1:
                self.fail("a constraint is one of never, only, or applies", *steps)
            if kinds == ["applies"] and not constraint.when:
                self.fail("applies: needs a `when:`, the condition of these axes", *steps)
            for key in ("when", "never", "only"):
                self._check_choice(getattr(constraint, key), *steps, key)
            for axis in constraint.applies:
                self._check_axis_name(axis, *steps, "applies")
            both = set(constraint.when) & {
                *constraint.never, *constraint.only, *constraint.applies
            }  # fmt: skip
            if both:
                self.fail(f"{', '.join(sorted(both))}: on both sides of one constraint", *steps)

    def check_strength(self) -> None:
        for index, (axes, strength) in enumerate(self.matrix.groups):
            steps: tuple[Step, ...] = ("strength", "groups", index - 1) if index else ("strength",)
            for axis in axes:
                self._check_axis_name(axis, *steps, "axes")
            if len(set(axes)) < len(axes):
                self.fail("a group has an axis twice", *steps)
            if not strength:
                self.fail("a strength is a number, pairs, triples, or all", *steps)
            if strength > len(axes):
                self.fail(f"a strength of {strength} over {len(axes)}: {', '.join(axes)}", *steps)

    def check_cells(self) -> None:
        cells = self.matrix.cells
        for index, cell in enumerate(cells):
            self._check_choice(dict(cell.values), "cells", index, "values")
            for earlier in range(index):
                if cells[earlier].values == cell.values:
                    problem = f"cells {earlier + 1} and {index + 1} have the same values"
                    self.fail(problem, "cells", index)

    def check_works(self) -> None:
        for name, work in self.matrix.run.items():
            self._check_choice(work.when, "run", name, "when")
            problem = command_template.find_template_problem(work, self.matrix)
            if problem:
                self.fail(f"{name}: {problem}", "run", name, "command")
        if axis := command_template.find_unused_axis(self.matrix):
            self.fail(
                f"the axis {axis} changes no command: name it as {{{axis}}}, give its values "
                "arguments and put {words} into a command, or leave it out",
                "axes",
                axis,
            )
