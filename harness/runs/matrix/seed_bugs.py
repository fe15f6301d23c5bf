"""The five seeds' configurations, and how much of each a matrix can have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from harness.runs.matrix.cell_plan import SeedConfiguration
from harness.runs.matrix.matrix_document import MatrixDocument
from harness.runs.matrix.matrix_schema import MatrixSpec

SEEDS_FILE = Path(__file__).with_name("seeds.yaml")


class SeedBug(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What had to come together for a bug to show."""

    pr: int
    title: str
    values: dict[str, list[str]]  # by well-known axis: what its value may be called


class SeedBugFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of the data file."""

    axes: dict[str, list[str]]  # under which names a matrix may have a well-known axis
    seeds: list[SeedBug]


def read_seed_bugs() -> SeedBugFile:
    return MatrixDocument(SEEDS_FILE).convert_to(SeedBugFile)


def place_seeds(
    matrix: MatrixSpec, explain_conflict: Callable[[dict[str, str]], Sequence[str]]
) -> list[SeedConfiguration]:
    """Each seed as far as a matrix has it; `forbids` names the constraints against some values."""
    known = read_seed_bugs()
    return [_place_seed(bug, known, matrix, explain_conflict) for bug in known.seeds]


def _place_seed(
    bug: SeedBug,
    seed_file: SeedBugFile,
    matrix: MatrixSpec,
    explain_conflict: Callable[[dict[str, str]], Sequence[str]],
) -> SeedConfiguration:
    values: dict[str, str] = {}
    lacking: list[str] = []
    for axis, names in bug.values.items():
        own = next((name for name in seed_file.axes[axis] if name in matrix.axes), None)
        if own is None:
            lacking.append(f"no axis {axis}")
            continue
        value = next((name for name in names if name in matrix.list_values(own)), None)
        if value is None:
            lacking.append(f"{own} is never {' or '.join(names)}")
            continue
        values[own] = value
    if not values:
        return SeedConfiguration(bug.pr, bug.title, "out", {}, lacking)
    against = explain_conflict(values)
    if against:
        return SeedConfiguration(bug.pr, bug.title, "out", {}, [*lacking, *against])
    return SeedConfiguration(bug.pr, bug.title, "part" if lacking else "whole", values, lacking)
