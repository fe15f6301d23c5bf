"""A matrix file: its axes, what of them may not meet, how much is covered, and what is run.

name: pages
axes:
  release: [0.5.16, 0.5.18]
  kv: {auto: "", fp8: --kv-cache-dtype fp8_e4m3}
  page: {1: "", 16: --page-size 16}
  speculative: [none, EAGLE]
  topk: [1, 4]
constraints:
  - {when: {speculative: EAGLE}, applies: [topk], because: only a tree has branches}
  - {when: {kv: fp8}, only: {page: 16}, because: this kernel reads whole pages}
run:
  pages: {kind: eval, command: "--release {release} -- {words}"}
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from harness.runs.matrix.cell_plan import MachineNeeds

NonEmptyText = Annotated[str, Meta(pattern=r"\S")]
Identifier = Annotated[str, Meta(pattern=r"^[A-Za-z_][\w.-]*\Z")]
ValueChoice = str | list[str]  # one value, or any of several
PartialValues = dict[str, str]
ChosenValues = dict[str, ValueChoice]
STRENGTH_BY_WORD = {"pairs": 2, "triples": 3}
RESERVED_AXIS = "words"


class ValueNeeds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a value of an axis asks of a machine; of several the most counts."""

    cpus: Annotated[float, Meta(ge=0)] = 0.0
    gpus: Annotated[float, Meta(ge=0)] = 0.0
    gpu: str = ""
    custom: dict[str, float] = {}


class AxisValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a value of an axis adds to a command."""

    words: str = ""
    environment: dict[str, str] = {}
    needs: ValueNeeds = ValueNeeds()


class AxisConstraint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What may not be together, or which axes are there at all, and why."""

    because: NonEmptyText
    when: ChosenValues = {}
    never: ChosenValues = {}
    only: ChosenValues = {}
    applies: list[str] = []


class StrengthGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Axes that are covered more, or less, than the others."""

    axes: Annotated[list[str], Meta(min_length=1)]
    strength: str


class CoverageStrength(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many values at a time have to meet."""

    default: str = "pairs"
    groups: list[StrengthGroup] = []


class FixedCell(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cell that is in, whatever is covered without it."""

    values: Annotated[PartialValues, Meta(min_length=1)]
    because: NonEmptyText


class CellWork(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is run in a cell."""

    command: str
    kind: Literal["suites", "eval", "command"] = "command"
    when: ChosenValues = {}
    needs: MachineNeeds = MachineNeeds()
    limit: Annotated[float, Meta(gt=0)] = 3600.0
    environment: dict[str, str] = {}


class MatrixSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of one file."""

    name: Identifier
    axes: Annotated[dict[Identifier, list[str] | dict[str, str | AxisValue]], Meta(min_length=1)]
    run: Annotated[dict[Identifier, CellWork], Meta(min_length=1)]
    constraints: list[AxisConstraint] = []
    strength: str | CoverageStrength = "pairs"
    seed: int = 0
    seeds: bool = False
    cells: list[FixedCell] = []

    def list_values(self, axis: str) -> list[str]:
        return list(self.axes[axis])

    def get_value(self, axis: str, name: str) -> AxisValue:
        given = self.axes[axis]
        if isinstance(given, list):
            return AxisValue()
        one = given[name]
        return AxisValue(words=one) if isinstance(one, str) else one

    @property
    def groups(self) -> list[tuple[list[str], int]]:
        """The groups that are covered, with their strengths: first all axes, then the file's."""
        whole = CoverageStrength(self.strength) if isinstance(self.strength, str) else self.strength
        everything = StrengthGroup(list(self.axes), whole.default)
        return [
            (group.axes, parse_strength(group.strength, len(group.axes)))
            for group in (everything, *whole.groups)
        ]


def parse_strength(word: str, axes: int) -> int:
    """How many axes at a time; 0 for a word that is none."""
    if word == "all":
        return axes
    return STRENGTH_BY_WORD.get(word) or (int(word) if word.isdecimal() else 0)


def suggest_nearest(word: str, known: Iterable[str]) -> str:
    """The end of a sentence about a word that nobody knows."""
    there = list(known)
    close = difflib.get_close_matches(word, there, 1, 0.5)
    return f"; did you mean {close[0]}?" if close else f"; there are {', '.join(there)}"


def to_list(choice: ValueChoice) -> list[str]:
    return [choice] if isinstance(choice, str) else choice
