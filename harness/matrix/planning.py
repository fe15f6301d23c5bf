"""From a matrix file to a plan: the cells, why each is there, and what they cover."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from harness import paths
from harness.errors import UnfixError
from harness.matrix import commands, constraints, covering, reading, seeds
from harness.matrix.constraints import Book
from harness.matrix.document import Document
from harness.matrix.schema import Chosen, Constraint, Matrix, listed
from harness.matrix.space import Row
from harness.matrix.tuples import Tuple
from harness.matrix.values import Cell, Coverage, Dropped, Plan, Seed

FOLDER = "suites/matrices"
COVERING = "covering"


def find(file: Path) -> Path:
    """A matrix file, or the one of ours that has this name."""
    ours = paths.project() / FOLDER / f"{file}.yaml"
    if len(file.parts) == 1 and not file.suffix and not file.is_file():
        if not ours.is_file():
            known = ", ".join(sorted(one.stem for one in ours.parent.glob("*.yaml")))
            raise UnfixError(f"no matrix is called {file}; there are {known}")
        return ours
    return file


def plan(file: Path, seconds_by_identity: Mapping[str, float] | None = None) -> Plan:
    """A file, planned: the same cells each time and everywhere, whatever is known of their time."""
    file = find(file)
    return Planning(reading.read(file), Document(file)).plan(seconds_by_identity or {})


class Planning:
    """One file on its way to a plan."""

    def __init__(self, matrix: Matrix, document: Document) -> None:
        self.began = time.perf_counter()
        self.matrix = matrix
        self.document = document
        self.space = constraints.compiled(matrix)
        self.book = Book(matrix, self.space)

    def plan(self, seconds_by_identity: Mapping[str, float]) -> Plan:
        self._something_is_left()
        seeds = self._seeds()
        fixed = self._fixed(seeds)
        keep = [self.book.bits_of(values) for values, _ in fixed]
        found = covering.cover(self.space, self._groups(), keep, self.matrix.seed)
        cells = self._cells(found, [why for _, why in fixed], seconds_by_identity)
        coverage, forbidden = self._coverage(found.rows)
        return Plan(
            name=self.matrix.name,
            digest=digest(self.matrix, cells),
            axes={axis: self.matrix.values(axis) for axis in self.matrix.axes},
            cells=cells,
            dropped=self._dropped(forbidden, seeds),
            coverage=coverage,
            seconds=round(time.perf_counter() - self.began, 3),
            estimated=estimated(cells),
            seeds=seeds,
        )

    def _something_is_left(self) -> None:
        if not self.space.extends([]):
            against = "; ".join(self._named(constraints.conflict(self.space, [])))
            raise UnfixError(f"{self.document.path}: no cell is left by {against}")

    def _named(self, indices: Sequence[int]) -> list[str]:
        return [
            f"constraint {index + 1} ({self.matrix.constraints[index].because}, "
            f"line {self.document.line('constraints', index)})"
            for index in indices
        ]

    def _against(self, values: Mapping[str, str]) -> list[str]:
        """The constraints that together forbid some values; none if they do not."""
        there = self.book.bits_of(values)
        if self.space.extends(there):
            return []
        return self._named(constraints.conflict(self.space, there))

    def _seeds(self) -> list[Seed]:
        return seeds.placed(self.matrix, self._against) if self.matrix.seeds else []

    def _fixed(self, seeds: Sequence[Seed]) -> list[tuple[dict[str, str], str]]:
        """The values that a cell each has to have, and why."""
        wanted: list[tuple[dict[str, str], str]] = []
        for index, fixed in enumerate(self.matrix.cells):
            against = self._against(fixed.values)
            if against:
                said = f"cell {index + 1} ({commands.said(fixed.values)}) is forbidden by "
                raise self.document.error(said + "; ".join(against), "cells", index)
            wanted.append((fixed.values, fixed.because))
        for seed in seeds:
            if seed.state != "out":
                part = "" if seed.state == "whole" else ", in part"
                wanted.append((seed.values, f"seed {seed.pr}{part}"))
        return _joined(wanted)

    def _groups(self) -> list[tuple[list[int], int]]:
        return [
            ([self.book.index[axis] for axis in axes], strength)
            for axes, strength in self.matrix.groups
        ]

    def _cells(
        self, found: covering.Covered, whys: Sequence[str], known: Mapping[str, float]
    ) -> list[Cell]:
        reasons: dict[tuple[int, ...], list[str]] = {}
        for row, why in zip(found.kept, whys, strict=True):
            reasons.setdefault(tuple(row), []).append(why)
        return [
            cell
            for row in found.rows
            for cell in self._works(row, "; ".join(reasons.get(tuple(row), [COVERING])), known)
        ]

    def _works(self, row: Row, why: str, known: Mapping[str, float]) -> list[Cell]:
        values = self.book.values_of(row)
        cells = []
        for name, work in self.matrix.run.items():
            if commands.runs(work, values):
                identity = identity_of(values, name)
                cell = Cell(
                    identity=identity,
                    values=values,
                    work=name,
                    command=commands.command(work, values, self.matrix),
                    environment=commands.environment(work, values, self.matrix),
                    needs=commands.needs(work, values, self.matrix),
                    limit=work.limit,
                    why=why,
                    seconds=known.get(identity),
                )
                cells.append(cell)
        if not cells:
            raise UnfixError(
                f"{self.document.path}: nothing is run where {commands.said(values)}: "
                "give a work a wider `when:`, or keep such cells out by a constraint"
            )
        return cells

    def _coverage(self, rows: Sequence[Row]) -> tuple[list[Coverage], dict[Tuple, None]]:
        """Each group, counted from the rows alone, and the tuples that none can have."""
        coverage: list[Coverage] = []
        forbidden: dict[Tuple, None] = {}
        for (names, strength), (axes, _) in zip(self.matrix.groups, self._groups(), strict=True):
            counted = covering.count(self.space, axes, strength, rows)
            if counted.covered < counted.tuples:
                raise AssertionError(f"{counted} of {names} was said to be covered")
            forbidden.update(dict.fromkeys(counted.forbidden))
            lacking = len(counted.forbidden)
            coverage.append(Coverage(names, strength, counted.tuples, counted.covered, lacking))
        return coverage, forbidden

    def _dropped(self, forbidden: Mapping[Tuple, None], seeds: Sequence[Seed]) -> list[Dropped]:
        dropped = []
        for index, constraint in enumerate(self.matrix.constraints):
            without = self.space.without(index)
            named = self._named([index])[0]
            dropped.append(
                Dropped(
                    constraint=said(constraint),
                    because=constraint.because,
                    tuples=sum(without.extends(one) for one in forbidden),
                    fixed=[
                        f"seed {seed.pr}: {seed.title}" for seed in seeds if named in seed.lacking
                    ],
                )
            )
        return dropped


def _joined(wanted: Sequence[tuple[dict[str, str], str]]) -> list[tuple[dict[str, str], str]]:
    """One cell serves all that ask for no more than it has."""
    whys: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for values, _ in wanted:
        larger = [other for other, _ in wanted if values.items() < other.items()]
        if not larger:
            whys.setdefault(tuple(sorted(values.items())), [])
    for values, why in wanted:
        served = next(key for key in whys if values.items() <= dict(key).items())
        whys[served].append(why)
    return [(dict(key), "; ".join(why)) for key, why in whys.items()]


def said(constraint: Constraint) -> str:
    """A constraint in words."""
    when = _chosen(constraint.when)
    if constraint.applies:
        return f"{', '.join(constraint.applies)} only when {when}"
    does = f"never {_chosen(constraint.never)}" if constraint.never else ""
    does = does or f"only {_chosen(constraint.only)}"
    return f"when {when}: {does}" if when else does


def _chosen(chosen: Chosen) -> str:
    return ", ".join(f"{axis} {'/'.join(listed(words))}" for axis, words in chosen.items())


def identity_of(values: Mapping[str, str], work: str) -> str:
    """A cell's name in every plan that has it."""
    data = msgspec.json.encode([sorted(values.items()), work])
    return hashlib.sha256(data).hexdigest()[:12]


def digest(matrix: Matrix, cells: Sequence[Cell]) -> str:
    """All that is run, and how; not why, nor how long it takes."""
    ran = [
        [cell.identity, cell.command, cell.environment, cell.needs, cell.limit] for cell in cells
    ]
    axes = {axis: matrix.values(axis) for axis in matrix.axes}
    data = msgspec.json.encode([matrix.name, axes, ran], order="deterministic")
    return hashlib.sha256(data).hexdigest()[:16]


def estimated(cells: Sequence[Cell]) -> float | None:
    """One after the other; those that never ran take the mean of the others."""
    known = [cell.seconds for cell in cells if cell.seconds is not None]
    return sum(known) / len(known) * len(cells) if known else None
