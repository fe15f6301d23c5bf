"""The configurations of five historical bugs, and the part of each that a matrix can have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from harness.core.yaml_document import YamlDocument
from harness.matrices.schema import MatrixFile
from harness.runs.matrix.cell_plan import SeedConfiguration

SEEDS_FILE = Path(__file__).with_name("seeds.yaml")


class SeedBug(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The combination of values that shows a bug."""

    pr: int
    title: str
    values: dict[str, list[str]]  # by well-known axis: the accepted names of its value


class SeedBugFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole data file."""

    axes: dict[str, list[str]]  # by well-known axis: its accepted names
    seeds: list[SeedBug]


def read_seed_bugs() -> SeedBugFile:
    return YamlDocument(SEEDS_FILE).convert_to(SeedBugFile)


def place_seeds(
    matrix: MatrixFile, explain_conflict: Callable[[dict[str, str]], Sequence[str]]
) -> list[SeedConfiguration]:
    """Place each bug's configuration; `explain_conflict` names the constraints against it."""
    seed_file = read_seed_bugs()
    return [_place_seed(bug, seed_file, matrix, explain_conflict) for bug in seed_file.seeds]


def _place_seed(
    bug: SeedBug,
    seed_file: SeedBugFile,
    matrix: MatrixFile,
    explain_conflict: Callable[[dict[str, str]], Sequence[str]],
) -> SeedConfiguration:
    values: dict[str, str] = {}
    lacking: list[str] = []
    for axis, names in bug.values.items():
        own_axis = next((name for name in seed_file.axes[axis] if name in matrix.axes), None)
        if own_axis is None:
            lacking.append(f"no axis {axis}")
            continue
        value = next((name for name in names if name in matrix.list_values(own_axis)), None)
        if value is None:
            lacking.append(f"{own_axis} is never {' or '.join(names)}")
        else:
            values[own_axis] = value
    conflict = explain_conflict(values) if values else []
    if conflict or not values:
        return SeedConfiguration(bug.pr, bug.title, "out", {}, [*lacking, *conflict])
    return SeedConfiguration(bug.pr, bug.title, "part" if lacking else "whole", values, lacking)
