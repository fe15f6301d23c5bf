"""A plan as frozen values: the cells to run, the reasons for them, and the coverage."""

from __future__ import annotations

import msgspec

from harness.matrices.schema import MachineNeeds


class MatrixCell(msgspec.Struct, frozen=True):
    """One configuration with one command."""

    identity: str  # from its values and work alone, so equal in every plan
    values: dict[str, str]  # by axis; an axis that does not apply is left out
    work: str  # the name of the work: 'prove', 'eval', or the file's own
    command: list[str]  # words, placeholders filled in
    environment: dict[str, str]
    needs: MachineNeeds
    limit: float  # seconds after which it hangs
    why: str  # 'covering', 'seed 27338', or the reason in the file for a fixed cell
    seconds: float | None = None  # expected, from stored runs


class DroppedTuples(msgspec.Struct, frozen=True):
    """The tuples and fixed cells that one constraint forbids."""

    constraint: str
    because: str
    tuples: int  # tuples of the covered groups, allowed without this constraint
    fixed: list[str] = []  # descriptions of the seeds that it forbids


class GroupCoverage(msgspec.Struct, frozen=True):
    """The coverage of one group of axes, counted tuple by tuple."""

    axes: list[str]
    strength: int  # len(axes) for all
    tuples: int  # the number of allowed tuples
    covered: int
    forbidden: int  # impossible in an allowed cell


class SeedConfiguration(msgspec.Struct, frozen=True):
    """The configuration of one historical bug, limited to the axes of a matrix."""

    pr: int
    title: str
    state: str  # 'whole', 'part', 'out'
    values: dict[str, str]  # the part of it that one cell has
    lacking: list[str] = []  # the reasons why the rest is missing


class MatrixPlan(msgspec.Struct, frozen=True):
    """A matrix file, planned."""

    name: str
    digest: str  # two plans of one digest run the same cells
    axes: dict[str, list[str]]
    cells: list[MatrixCell]
    dropped: list[DroppedTuples]
    coverage: list[GroupCoverage]
    seconds: float  # the time of planning
    estimated: float | None = None  # seconds of all cells, one after the other
    seeds: list[SeedConfiguration] = []


class PlanShard(msgspec.Struct, frozen=True):
    """A share of a plan's cells."""

    plan: str  # the digest
    number: int  # from 1
    of: int
    cells: list[str]  # identities
    seconds: float  # expected
