"""From a matrix file to a plan: the cells, the reason for each, and the tuples they cover."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from harness.core.errors import UnfixError
from harness.core.yaml_document import YamlDocument
from harness.matrices import constraint_rules, reader
from harness.matrices.constraint_rules import BitEncoding
from harness.matrices.covering import covering_array
from harness.matrices.covering.row_space import ValueRow
from harness.matrices.covering.value_tuples import ValueTuple
from harness.matrices.schema import AxisConstraint, ChosenValues, MatrixFile, to_list
from harness.runs.matrix import axis_checks, command_template, seed_bugs
from harness.runs.matrix.cell_plan import (
    DroppedTuples,
    GroupCoverage,
    MatrixCell,
    MatrixPlan,
    SeedConfiguration,
)

COVERING_REASON = "covering"
RequiredValues = tuple[dict[str, str], str]  # values that one cell must have, and the reason


def plan_matrix(file: Path, seconds_by_identity: Mapping[str, float] | None = None) -> MatrixPlan:
    """Plan a file; the expected seconds of its cells change no cell."""
    document, matrix = axis_checks.read_matrix(reader.find_matrix_file(str(file)))
    return PlanBuilder(document, matrix).build(seconds_by_identity or {})


class PlanBuilder:
    """Builds the plan of one file."""

    def __init__(self, document: YamlDocument, matrix: MatrixFile) -> None:
        self.started = time.perf_counter()
        self.document = document
        self.matrix = matrix
        self.space = constraint_rules.compile_constraints(self.matrix)
        self.encoding = BitEncoding(self.matrix, self.space)
        self.groups = [
            ([self.encoding.axis_index[axis] for axis in axes], strength)
            for axes, strength in self.matrix.groups
        ]

    def build(self, seconds_by_identity: Mapping[str, float]) -> MatrixPlan:
        if not self.space.can_extend([]):
            conflict = "; ".join(self._describe_conflict([]))
            raise UnfixError(f"{self.document.path}: no cell is left by {conflict}")
        seeds: list[SeedConfiguration] = []
        if self.matrix.seeds:
            seeds = seed_bugs.place_seeds(self.matrix, self._explain_conflict)
        required = self.list_required_values(seeds)
        bits = [self.encoding.to_bits(values) for values, _ in required]
        covering = covering_array.build_covering_rows(
            self.space, self.groups, bits, self.matrix.seed
        )
        cells = self._make_cells(covering, [reason for _, reason in required], seconds_by_identity)
        coverage, forbidden = self._count_coverage(covering.rows)
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

    def _name_constraint(self, index: int) -> str:
        because = self.matrix.constraints[index].because
        line = self.document.find_line("constraints", index)
        return f"constraint {index + 1} ({because}, line {line})"

    def _describe_conflict(self, bits: Sequence[int]) -> list[str]:
        return [self._name_constraint(i) for i in constraint_rules.find_conflict(self.space, bits)]

    def _explain_conflict(self, values: Mapping[str, str]) -> list[str]:
        """Explain which constraints together forbid some values; empty if they are allowed."""
        bits = self.encoding.to_bits(values)
        return [] if self.space.can_extend(bits) else self._describe_conflict(bits)

    def list_required_values(self, seeds: Sequence[SeedConfiguration]) -> list[RequiredValues]:
        """List the file's fixed cells and the seeds, each unless another cell includes it."""
        required: list[RequiredValues] = []
        for index, cell in enumerate(self.matrix.cells):
            if conflict := self._explain_conflict(cell.values):
                values = command_template.describe_values(cell.values)
                problem = f"cell {index + 1} ({values}) is forbidden by {'; '.join(conflict)}"
                raise self.document.make_error_at(problem, "cells", index)
            required.append((cell.values, cell.because))
        for seed in seeds:
            if seed.state != "out":
                part = "" if seed.state == "whole" else ", in part"
                required.append((seed.values, f"seed {seed.pr}{part}"))
        return _merge_required_values(required)

    def _make_cells(
        self,
        covering: covering_array.CoveringRows,
        required_reasons: Sequence[str],
        seconds_by_identity: Mapping[str, float],
    ) -> list[MatrixCell]:
        reasons: dict[tuple[int, ...], list[str]] = {}
        for row, reason in zip(covering.required_rows, required_reasons, strict=True):
            reasons.setdefault(tuple(row), []).append(reason)
        cells = []
        for row in covering.rows:
            reason = "; ".join(reasons.get(tuple(row), [COVERING_REASON]))
            cells += self._make_row_cells(row, reason, seconds_by_identity)
        return cells

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
                f"{self.document.path}: nothing is run where "
                f"{command_template.describe_values(values)}: give a work a wider `when:`, "
                "or exclude such cells by a constraint"
            )
        return cells

    def _count_coverage(
        self, rows: Sequence[ValueRow]
    ) -> tuple[list[GroupCoverage], dict[ValueTuple, None]]:
        """Count each group's coverage from the rows alone; return the impossible tuples, too."""
        coverage: list[GroupCoverage] = []
        forbidden: dict[ValueTuple, None] = {}
        for (names, strength), (axes, _) in zip(self.matrix.groups, self.groups, strict=True):
            count = covering_array.count_group_tuples(self.space, axes, strength, rows)
            if count.covered < count.allowed:
                raise AssertionError(f"the rows do not cover {names}: {count}")
            forbidden.update(dict.fromkeys(count.forbidden_tuples))
            impossible = len(count.forbidden_tuples)
            coverage.append(
                GroupCoverage(names, strength, count.allowed, count.covered, impossible)
            )
        return coverage, forbidden

    def _list_dropped(
        self, forbidden: Mapping[ValueTuple, None], seeds: Sequence[SeedConfiguration]
    ) -> list[DroppedTuples]:
        """List for each constraint the tuples that would be allowed without it."""
        dropped = []
        for index, constraint in enumerate(self.matrix.constraints):
            space = self.space.without_constraint(index)
            name = self._name_constraint(index)
            dropped.append(
                DroppedTuples(
                    describe_constraint(constraint),
                    constraint.because,
                    sum(space.can_extend(values) for values in forbidden),
                    [f"seed {seed.pr}: {seed.title}" for seed in seeds if name in seed.lacking],
                )
            )
        return dropped


def _merge_required_values(required: Sequence[RequiredValues]) -> list[RequiredValues]:
    """Merge entries whose values another entry includes; reasons are joined by `; `."""
    reasons: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for values, _ in required:
        if not any(values.items() < other.items() for other, _ in required):
            reasons.setdefault(tuple(sorted(values.items())), [])
    for values, reason in required:
        key = next(key for key in reasons if values.items() <= dict(key).items())
        reasons[key].append(reason)
    return [(dict(key), "; ".join(texts)) for key, texts in reasons.items()]


def describe_constraint(constraint: AxisConstraint) -> str:
    """Describe a constraint in words."""
    when = _describe_choice(constraint.when)
    if constraint.applies:
        return f"{', '.join(constraint.applies)} only when {when}"
    kind, choice = ("never", constraint.never) if constraint.never else ("only", constraint.only)
    rule = f"{kind} {_describe_choice(choice)}"
    return f"when {when}: {rule}" if when else rule


def _describe_choice(choice: ChosenValues) -> str:
    return ", ".join(f"{axis} {'/'.join(to_list(words))}" for axis, words in choice.items())


def compute_identity(values: Mapping[str, str], work: str) -> str:
    """Compute a cell's identity from its values and work alone, so equal in every plan."""
    data = msgspec.json.encode([sorted(values.items()), work])
    return hashlib.sha256(data).hexdigest()[:12]


def compute_digest(matrix: MatrixFile, cells: Sequence[MatrixCell]) -> str:
    """Compute the digest of the commands and their settings, without reasons and times."""
    work = [
        [cell.identity, cell.command, cell.environment, cell.needs, cell.limit] for cell in cells
    ]
    axes = {axis: matrix.list_values(axis) for axis in matrix.axes}
    data = msgspec.json.encode([matrix.name, axes, work], order="deterministic")
    return hashlib.sha256(data).hexdigest()[:16]


def estimate_seconds(cells: Sequence[MatrixCell]) -> float | None:
    """Estimate the time of all cells in turn; a cell that never ran counts as the mean."""
    known = [cell.seconds for cell in cells if cell.seconds is not None]
    return sum(known) / len(known) * len(cells) if known else None
