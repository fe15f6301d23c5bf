"""What each of the four back ends looks for, and where it knows less than the others.

The table of docs/check.md is made from this one (`list_rows`), and the planted faults of
tests/sanitizer/planted hold every back end to it: a kind that a target has is reported, with the
same words from each, and a kind that it lacks is not.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from harness.sanitizer.violations.kinds import (
    CHECK_NAMES,
    FORBIDDEN,
    KINDS_OF_CHECKS,
    RACES,
    ViolationKind,
)


class Target(Enum):
    TRITON_CPU = "Triton, compiled for a CPU"
    TRITON_GPU = "Triton, on a GPU"
    CUDA_CPU = "CUDA, executed on a CPU"
    CUDA_GPU = "CUDA, on a GPU"


@dataclass(frozen=True, slots=True)
class _Row:
    """Kinds that are alike, and what each target does, in the order of `Target`; "no…": nothing."""

    name: str
    kinds: tuple[ViolationKind, ...]
    words: tuple[str, str, str, str]


_EACH, _NUMBERS = "each access", "each integer in an address"
_POISON = "by the pattern of `torch.empty`, from two bytes on"
_BARRIERS = (
    ViolationKind.DIVERGENT_BARRIER,
    ViolationKind.DEADLOCK,
    ViolationKind.MISSING_LANES,
)
_COPIES = (ViolationKind.COPY_IN_PROGRESS, ViolationKind.COPY_WITHOUT_BARRIER)
_ROWS = (
    _Row(
        "an access out of bounds",
        (ViolationKind.OUT_OF_BOUNDS,),
        (_EACH, "each; loaded pointers by storages that Python knows", _EACH, "global memory"),
    ),
    _Row("a misaligned access", (ViolationKind.MISALIGNED,), ("no", "no", _EACH, "no")),
    _Row(
        "an access that a rule excludes",
        tuple(FORBIDDEN.values()),
        (_EACH, "in `checked()`", _EACH, "no"),
    ),
    _Row("an integer overflow", (ViolationKind.OVERFLOW,), (_NUMBERS,) * 4),
    _Row(
        "a read of uninitialized memory",
        (ViolationKind.UNINITIALIZED_READ,),
        (_EACH, _POISON, "each, of shared memory too", _POISON),
    ),
    _Row(
        "a product of uninitialized shared memory",
        (ViolationKind.UNINITIALIZED_PRODUCT,),
        ("no", "no", "by `ldmatrix` and `mma`", "no"),
    ),
    _Row(
        "a race",
        tuple(dict.fromkeys(RACES.values())),
        (
            "of programs; atomics order them",
            "of programs that cannot wait for each other; the last accesses of an element",
            "of threads, and of blocks that cannot wait for each other",
            "of blocks that cannot wait for each other; the last accesses of an element",
        ),
    ),
    _Row(
        "two lanes that store different values",
        (ViolationKind.LANE_RACE,),
        (_EACH, "no", "no: a race of threads", "no"),
    ),
    _Row("an asynchronous copy read too early", _COPIES, ("no", "no", "`cp.async`", "no")),
    _Row(
        "a failed assertion",
        (ViolationKind.ASSERTION,),
        ("each", "each", "each", "no: the device is lost, as without checks"),
    ),
    _Row(
        "a trap",
        (ViolationKind.TRAP,),
        ("no", "no", "each", "no: the device is lost, as without checks"),
    ),
    _Row("a barrier in vain", _BARRIERS, ("no", "no", "each", "no")),
    _Row(
        "a wait for a later program or block",
        (ViolationKind.ENDLESS_WAIT,),
        ("refused by name", "no: it runs", "refused by name", "no: it runs"),
    ),
)


def list_kinds(target: Target, checks: Collection[str] = CHECK_NAMES) -> frozenset[ViolationKind]:
    """Return the kinds that a target reports, without those of checks that are not asked for."""
    place = list(Target).index(target)
    looked_for = (row for row in _ROWS if row.words[place].partition(":")[0] != "no")
    off = {kind for name in set(CHECK_NAMES).difference(checks) for kind in KINDS_OF_CHECKS[name]}
    return frozenset(kind for row in looked_for for kind in row.kinds) - off


def list_rows() -> list[tuple[str, ...]]:
    """Return the rows of the table: what is found, and how by each target."""
    return [(row.name, *row.words) for row in _ROWS]
