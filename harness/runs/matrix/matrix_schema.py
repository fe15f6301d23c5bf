"""The schema of a matrix file: axes, constraints, coverage strength, and the commands to run.

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
    """The resources that an axis value requires; of several requirements the largest counts."""

    cpus: Annotated[float, Meta(ge=0)] = 0.0
    gpus: Annotated[float, Meta(ge=0)] = 0.0
    gpu: str = ""
    custom: dict[str, float] = {}


class AxisValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments, variables and resources that an axis value adds to a command."""

    words: str = ""
    environment: dict[str, str] = {}
    needs: ValueNeeds = ValueNeeds()


class AxisConstraint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Values that may not meet, or the condition under which axes apply, and the reason."""

    because: NonEmptyText
    when: ChosenValues = {}
    never: ChosenValues = {}
    only: ChosenValues = {}
    applies: list[str] = []


class StrengthGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Axes with a coverage strength of their own."""

    axes: Annotated[list[str], Meta(min_length=1)]
    strength: str


class CoverageStrength(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The number of axes at a time of which every combination of values must occur."""

    default: str = "pairs"
    groups: list[StrengthGroup] = []


class FixedCell(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Values that one cell of the plan must have."""

    values: Annotated[PartialValues, Meta(min_length=1)]
    because: NonEmptyText


class CellWork(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A command that runs in the cells that match `when`."""

    command: str
    kind: Literal["suites", "eval", "command"] = "command"
    when: ChosenValues = {}
    needs: MachineNeeds = MachineNeeds()
    limit: Annotated[float, Meta(gt=0)] = 3600.0
    environment: dict[str, str] = {}


class MatrixSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole matrix file."""

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
        values = self.axes[axis]
        if isinstance(values, list):
            return AxisValue()
        value = values[name]
        return AxisValue(words=value) if isinstance(value, str) else value

    @property
    def groups(self) -> list[tuple[list[str], int]]:
        """The groups of axes with their strengths: all axes first, then the file's groups."""
        strength = self.strength
        if isinstance(strength, str):
            strength = CoverageStrength(strength)
        all_axes = StrengthGroup(list(self.axes), strength.default)
        return [
            (group.axes, parse_strength(group.strength, len(group.axes)))
            for group in (all_axes, *strength.groups)
        ]


def parse_strength(word: str, axes: int) -> int:
    """Parse the number of axes at a time; 0 if the word is no strength."""
    if word == "all":
        return axes
    return STRENGTH_BY_WORD.get(word) or (int(word) if word.isdecimal() else 0)


def to_list(choice: ValueChoice) -> list[str]:
    return [choice] if isinstance(choice, str) else choice
