"""The five seeds' configurations, and how much of each a matrix can have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from harness.matrix.document import Document
from harness.matrix.schema import Matrix
from harness.matrix.values import Seed

FILE = Path(__file__).with_name("seeds.yaml")


class Bug(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What had to come together for a bug to show."""

    pr: int
    title: str
    values: dict[str, list[str]]  # by well-known axis: what its value may be called


class Seeds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of the data file."""

    axes: dict[str, list[str]]  # under which names a matrix may have a well-known axis
    seeds: list[Bug]


def read() -> Seeds:
    return Document(FILE).shaped(Seeds)


def placed(matrix: Matrix, forbids: Callable[[dict[str, str]], Sequence[str]]) -> list[Seed]:
    """Each seed as far as a matrix has it; `forbids` names the constraints against some values."""
    known = read()
    return [_placed(bug, known, matrix, forbids) for bug in known.seeds]


def _placed(
    bug: Bug, known: Seeds, matrix: Matrix, forbids: Callable[[dict[str, str]], Sequence[str]]
) -> Seed:
    values: dict[str, str] = {}
    lacking: list[str] = []
    for axis, names in bug.values.items():
        own = next((name for name in known.axes[axis] if name in matrix.axes), None)
        if own is None:
            lacking.append(f"no axis {axis}")
            continue
        value = next((name for name in names if name in matrix.values(own)), None)
        if value is None:
            lacking.append(f"{own} is never {' or '.join(names)}")
            continue
        values[own] = value
    if not values:
        return Seed(bug.pr, bug.title, "out", {}, lacking)
    against = forbids(values)
    if against:
        return Seed(bug.pr, bug.title, "out", {}, [*lacking, *against])
    return Seed(bug.pr, bug.title, "part" if lacking else "whole", values, lacking)
