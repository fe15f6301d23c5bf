"""What planning hands to running: cells, how they were chosen, and what each needs."""

from __future__ import annotations

import msgspec


class MachineNeeds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a cell takes of a machine while it runs."""

    cpus: float = 1.0
    gpus: float = 0.0
    gpu: str = ""  # the kind, as 'H200'; '' for any
    custom: dict[str, float] = {}  # by a cluster's own names, as {'npu': 1}


class MatrixCell(msgspec.Struct, frozen=True):
    """One configuration, and what is run in it."""

    identity: str  # from its values and its work alone, so the same in every plan that has it
    values: dict[str, str]  # by axis; an axis that does not apply is left out
    work: str  # the name of what is run: 'prove', 'eval', or the file's own
    command: list[str]  # words, placeholders filled in
    environment: dict[str, str]
    needs: MachineNeeds
    limit: float  # seconds after which it hangs
    why: str  # 'covering', 'seed', or the words of the file for a fixed cell
    seconds: float | None = None  # expected, from stored runs


class DroppedTuples(msgspec.Struct, frozen=True):
    """What one constraint keeps out."""

    constraint: str
    because: str
    tuples: int  # allowed but for it, in the groups that are covered
    fixed: list[str] = []  # fixed cells that it forbids, in words


class GroupCoverage(msgspec.Struct, frozen=True):
    """One group of axes, counted tuple by tuple."""

    axes: list[str]
    strength: int  # len(axes) for all
    tuples: int  # that the constraints allow
    covered: int
    forbidden: int  # that no allowed cell can hold


class SeedConfiguration(msgspec.Struct, frozen=True):
    """The configuration of one historical bug, as far as a matrix has it."""

    pr: int
    title: str
    state: str  # 'whole', 'part', 'out'
    values: dict[str, str]  # what of it is in one cell
    lacking: list[str] = []  # why the rest is not, in words


class MatrixPlan(msgspec.Struct, frozen=True):
    """A matrix file, planned."""

    name: str
    digest: str  # of all that decides the cells: two plans of one digest have the same cells
    axes: dict[str, list[str]]
    cells: list[MatrixCell]
    dropped: list[DroppedTuples]
    coverage: list[GroupCoverage]
    seconds: float  # that planning took
    estimated: float | None = None  # of running all cells one after the other
    seeds: list[SeedConfiguration] = []


class PlanShard(msgspec.Struct, frozen=True):
    """A share of a plan's cells."""

    plan: str  # the digest
    number: int  # from 1
    of: int
    cells: list[str]  # identities
    seconds: float  # expected
