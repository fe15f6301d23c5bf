"""From a matrix file to a plan: the cells, why each is there, and what they cover."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from harness.core import paths
from harness.core.errors import UnfixError
from harness.runs.matrix import (
    command_template,
    constraint_rules,
    covering_array,
    matrix_reader,
    seed_bugs,
)
from harness.runs.matrix.cell_plan import (
    DroppedTuples,
    GroupCoverage,
    MatrixCell,
    MatrixPlan,
    SeedConfiguration,
)
from harness.runs.matrix.constraint_rules import BitEncoding
from harness.runs.matrix.matrix_document import MatrixDocument
from harness.runs.matrix.matrix_schema import AxisConstraint, ChosenValues, MatrixSpec, to_list
from harness.runs.matrix.row_space import ValueRow
from harness.runs.matrix.value_tuples import ValueTuple

MATRIX_FOLDER = "suites/matrices"
COVERING_REASON = "covering"


def find_matrix_file(file: Path) -> Path:
    """A matrix file, or the one of ours that has this name."""
    ours = paths.project_folder() / MATRIX_FOLDER / f"{file}.yaml"
    if len(file.parts) == 1 and not file.suffix and not file.is_file():
        if not ours.is_file():
            known = ", ".join(sorted(one.stem for one in ours.parent.glob("*.yaml")))
            raise UnfixError(f"no matrix is called {file}; there are {known}")
        return ours
    return file


def plan_matrix(file: Path, seconds_by_identity: Mapping[str, float] | None = None) -> MatrixPlan:
    """A file, planned: the same cells each time and everywhere, whatever is known of their time."""
    file = find_matrix_file(file)
    return PlanBuilder(matrix_reader.read_matrix(file), MatrixDocument(file)).build(
        seconds_by_identity or {}
    )


class PlanBuilder:
    """One file on its way to a plan."""

    def __init__(self, matrix: MatrixSpec, document: MatrixDocument) -> None:
        self.started = time.perf_counter()
        self.matrix = matrix
        self.document = document
        self.space = constraint_rules.compile_constraints(matrix)
        self.encoding = BitEncoding(matrix, self.space)

    def build(self, seconds_by_identity: Mapping[str, float]) -> MatrixPlan:
        self._check_satisfiable()
        seeds = self._place_seeds()
        fixed = self._list_fixed_cells(seeds)
        keep = [self.encoding.to_bits(values) for values, _ in fixed]
        found = covering_array.build_covering_rows(
            self.space, self._index_groups(), keep, self.matrix.seed
        )
        cells = self._make_cells(found, [why for _, why in fixed], seconds_by_identity)
        coverage, forbidden = self._count_coverage(found.rows)
        return MatrixPlan(
            name=self.matrix.name,
            digest=compute_digest(self.matrix, cells),
            axes={axis: self.matrix.list_values(axis) for axis in self.matrix.axes},
            cells=cells,
            dropped=self._list_dropped(forbidden, seeds),
            coverage=coverage,
            seconds=round(time.perf_counter() - self.started, 3),
            estimated=estimate_seconds(cells),
            seeds=seeds,
        )

    def _check_satisfiable(self) -> None:
        if not self.space.can_extend([]):
            against = "; ".join(
                self._name_constraints(constraint_rules.find_conflict(self.space, []))
            )
            raise UnfixError(f"{self.document.path}: no cell is left by {against}")

    def _name_constraints(self, indices: Sequence[int]) -> list[str]:
        return [
            f"constraint {index + 1} ({self.matrix.constraints[index].because}, "
            f"line {self.document.find_line('constraints', index)})"
            for index in indices
        ]

    def _explain_conflict(self, values: Mapping[str, str]) -> list[str]:
        """The constraints that together forbid some values; none if they do not."""
        there = self.encoding.to_bits(values)
        if self.space.can_extend(there):
            return []
        return self._name_constraints(constraint_rules.find_conflict(self.space, there))

    def _place_seeds(self) -> list[SeedConfiguration]:
        return (
            seed_bugs.place_seeds(self.matrix, self._explain_conflict) if self.matrix.seeds else []
        )

    def _list_fixed_cells(
        self, seeds: Sequence[SeedConfiguration]
    ) -> list[tuple[dict[str, str], str]]:
        """The values that a cell each has to have, and why."""
        wanted: list[tuple[dict[str, str], str]] = []
        for index, fixed in enumerate(self.matrix.cells):
            against = self._explain_conflict(fixed.values)
            if against:
                said = f"cell {index + 1} ({command_template.describe_values(fixed.values)}) is forbidden by "
                raise self.document.make_error_at(said + "; ".join(against), "cells", index)
            wanted.append((fixed.values, fixed.because))
        for seed in seeds:
            if seed.state != "out":
                part = "" if seed.state == "whole" else ", in part"
                wanted.append((seed.values, f"seed {seed.pr}{part}"))
        return _merge_fixed_cells(wanted)

    def _index_groups(self) -> list[tuple[list[int], int]]:
        return [
            ([self.encoding.axis_index[axis] for axis in axes], strength)
            for axes, strength in self.matrix.groups
        ]

    def _make_cells(
        self,
        covering_rows: covering_array.CoveringRows,
        fixed_reasons: Sequence[str],
        seconds_by_identity: Mapping[str, float],
    ) -> list[MatrixCell]:
        reasons: dict[tuple[int, ...], list[str]] = {}
        for row, why in zip(covering_rows.kept_rows, fixed_reasons, strict=True):
            reasons.setdefault(tuple(row), []).append(why)
        return [
            cell
            for row in covering_rows.rows
            for cell in self._make_row_cells(
                row, "; ".join(reasons.get(tuple(row), [COVERING_REASON])), seconds_by_identity
            )
        ]

    def _make_row_cells(
        self, row: ValueRow, reason: str, seconds_by_identity: Mapping[str, float]
    ) -> list[MatrixCell]:
        values = self.encoding.to_values(row)
        cells = []
        for name, work in self.matrix.run.items():
            if command_template.is_work_run(work, values):
                identity = compute_identity(values, name)
                cell = MatrixCell(
                    identity=identity,
                    values=values,
                    work=name,
                    command=command_template.fill_command(work, values, self.matrix),
                    environment=command_template.fill_environment(work, values, self.matrix),
                    needs=command_template.combine_needs(work, values, self.matrix),
                    limit=work.limit,
                    why=reason,
                    seconds=seconds_by_identity.get(identity),
                )
                cells.append(cell)
        if not cells:
            raise UnfixError(
                f"{self.document.path}: nothing is run where {command_template.describe_values(values)}: "
                "give a work a wider `when:`, or keep such cells out by a constraint"
            )
        return cells

    def _count_coverage(
        self, rows: Sequence[ValueRow]
    ) -> tuple[list[GroupCoverage], dict[ValueTuple, None]]:
        """Each group, counted from the rows alone, and the tuples that none can have."""
        coverage: list[GroupCoverage] = []
        forbidden: dict[ValueTuple, None] = {}
        for (names, strength), (axes, _) in zip(
            self.matrix.groups, self._index_groups(), strict=True
        ):
            counted = covering_array.count_group_tuples(self.space, axes, strength, rows)
            if counted.covered < counted.allowed:
                raise AssertionError(f"{counted} of {names} was said to be covered")
            forbidden.update(dict.fromkeys(counted.forbidden_tuples))
            lacking = len(counted.forbidden_tuples)
            coverage.append(
                GroupCoverage(names, strength, counted.allowed, counted.covered, lacking)
            )
        return coverage, forbidden

    def _list_dropped(
        self, forbidden: Mapping[ValueTuple, None], seeds: Sequence[SeedConfiguration]
    ) -> list[DroppedTuples]:
        dropped = []
        for index, constraint in enumerate(self.matrix.constraints):
            without = self.space.without_constraint(index)
            named = self._name_constraints([index])[0]
            dropped.append(
                DroppedTuples(
                    constraint=describe_constraint(constraint),
                    because=constraint.because,
                    tuples=sum(without.can_extend(one) for one in forbidden),
                    fixed=[
                        f"seed {seed.pr}: {seed.title}" for seed in seeds if named in seed.lacking
                    ],
                )
            )
        return dropped


def _merge_fixed_cells(
    fixed_cells: Sequence[tuple[dict[str, str], str]],
) -> list[tuple[dict[str, str], str]]:
    """One cell serves all that ask for no more than it has."""
    whys: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for values, _ in fixed_cells:
        larger = [other for other, _ in fixed_cells if values.items() < other.items()]
        if not larger:
            whys.setdefault(tuple(sorted(values.items())), [])
    for values, why in fixed_cells:
        served = next(key for key in whys if values.items() <= dict(key).items())
        whys[served].append(why)
    return [(dict(key), "; ".join(why)) for key, why in whys.items()]


def describe_constraint(constraint: AxisConstraint) -> str:
    """A constraint in words."""
    when = _describe_choice(constraint.when)
    if constraint.applies:
        return f"{', '.join(constraint.applies)} only when {when}"
    does = f"never {_describe_choice(constraint.never)}" if constraint.never else ""
    does = does or f"only {_describe_choice(constraint.only)}"
    return f"when {when}: {does}" if when else does


def _describe_choice(choice: ChosenValues) -> str:
    return ", ".join(f"{axis} {'/'.join(to_list(words))}" for axis, words in choice.items())


def compute_identity(values: Mapping[str, str], work: str) -> str:
    """A cell's name in every plan that has it."""
    data = msgspec.json.encode([sorted(values.items()), work])
    return hashlib.sha256(data).hexdigest()[:12]


def compute_digest(matrix: MatrixSpec, cells: Sequence[MatrixCell]) -> str:
    """All that is run, and how; not why, nor how long it takes."""
    ran = [
        [cell.identity, cell.command, cell.environment, cell.needs, cell.limit] for cell in cells
    ]
    axes = {axis: matrix.list_values(axis) for axis in matrix.axes}
    data = msgspec.json.encode([matrix.name, axes, ran], order="deterministic")
    return hashlib.sha256(data).hexdigest()[:16]


def estimate_seconds(cells: Sequence[MatrixCell]) -> float | None:
    """One after the other; those that never ran take the mean of the others."""
    known = [cell.seconds for cell in cells if cell.seconds is not None]
    return sum(known) / len(known) * len(cells) if known else None
