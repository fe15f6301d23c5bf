"""The schema of a matrix file: configurations, listed one by one or covered by axes.

A file lists `configurations`, which `unfix eval` serves and compares, with the `faults` that are
planted in them; or it has `axes`, from whose values `unfix matrix` plans cells, each of which runs
the commands under `run`. One file may have both.

name: pages
configurations:
  - {name: llama, model: llama, engine: transformers}
  - {name: llama-triton, model: llama, serve: --attention-backend triton, like: llama}
faults:
  - {revert: prefix-positions-forgotten, in: [llama-triton], expect: caught}
axes:
  kv: {auto: "", fp8: --kv-cache-dtype fp8_e4m3}
  page: {1: "", 16: --page-size 16}
constraints:
  - {when: {kv: fp8}, only: {page: 16}, because: this kernel reads whole pages}
run:
  pages: {kind: eval, command: "-- {words}"}
"""

from __future__ import annotations

import shlex
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

DEFAULT_TASKS = ("recall", "copying", "needle", "shared")
DEFAULT_ITEMS = 200  # without a difference, enough for 'same' in up to 69 comparisons
DEFAULT_TOLERANCE = 0.05  # 'same' excludes a change of this or more
NonEmptyText = Annotated[str, Meta(pattern=r"\S")]
Identifier = Annotated[str, Meta(pattern=r"^[A-Za-z_][\w.-]*\Z")]
ValueChoice = str | list[str]  # one value, or any of several
PartialValues = dict[str, str]
ChosenValues = dict[str, ValueChoice]
STRENGTH_BY_WORD = {"pairs": 2, "triples": 3}
RESERVED_AXIS = "words"


# Configurations, which are listed


class EvaluationConfiguration(
    msgspec.Struct, forbid_unknown_fields=True, rename={"stand_ins": "stand-ins"}
):
    """One way to serve one model."""

    name: str
    model: str
    serve: str = ""
    engine: str = "sglang"  # or 'transformers': plain transformers, in float32
    release: str = ""
    draft: str = ""
    dtype: str = ""
    stand_ins: list[str] = []
    environment: dict[str, str] = {}
    like: str = ""  # the configuration that must give the same tokens
    against: str = ""  # the configuration that must have the same accuracy
    tasks: list[str] = []
    items: int = 0
    concurrency: int = 0
    revert: list[str] = []
    enable: list[str] = []
    absent: str = ""  # the reason why it cannot run; reported as a row

    @property
    def server_arguments(self) -> list[str]:
        return shlex.split(self.serve)

    @property
    def base_names(self) -> list[str]:
        return [name for name in (self.like, self.against) if name]


class FaultPlacement(msgspec.Struct, forbid_unknown_fields=True, rename={"where": "in"}):
    """A toggle that is planted on purpose in some configurations."""

    where: list[str]
    revert: str = ""
    enable: str = ""
    expect: str = "caught"  # or 'anything': its effect depends on hardware and size
    tasks: list[str] = []
    items: int = 0

    @property
    def toggle(self) -> str:
        return self.revert or self.enable


# Axes, whose values are combined


class MachineNeeds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The resources that a cell occupies while it runs."""

    cpus: float = 1.0
    gpus: float = 0.0
    gpu: str = ""  # the kind, as 'H200'; '' for any
    custom: dict[str, float] = {}  # by a cluster's own names: {'npu': 1}


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


AxisValues = list[str] | dict[str, str | AxisValue]


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


class MatrixFile(msgspec.Struct, forbid_unknown_fields=True):
    """A whole matrix file."""

    name: Identifier
    # What is listed, for `unfix eval`
    configurations: list[EvaluationConfiguration] = []
    faults: list[FaultPlacement] = []
    serve: str = ""  # arguments of every configuration, before its own
    tasks: list[str] = msgspec.field(default_factory=lambda: list(DEFAULT_TASKS))
    items: int = DEFAULT_ITEMS
    concurrency: int = 8
    seed: int = 0
    release: str = ""
    dtype: str = ""
    device: str = "auto"
    tolerance: float = DEFAULT_TOLERANCE
    within: int = 600  # seconds until an answer must come
    environment: dict[str, str] = {}
    # What is covered, for `unfix matrix`
    axes: Annotated[dict[Identifier, AxisValues], Meta(min_length=1)] = {}
    run: Annotated[dict[Identifier, CellWork], Meta(min_length=1)] = {}
    constraints: list[AxisConstraint] = []
    strength: str | CoverageStrength = "pairs"
    seeds: bool = False
    cells: list[FixedCell] = []

    def find_configuration(self, name: str) -> EvaluationConfiguration:
        return next(one for one in self.configurations if one.name == name)

    @property
    def comparison_count(self) -> int:
        """The number of accuracy comparisons, which share one rate of false alarms."""
        by_tasks = [len(one.tasks or self.tasks) for one in self.configurations if one.against]
        by_faults = [len(fault.where) for fault in self.faults]
        return max(1, sum(by_tasks) + sum(by_faults))

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


def is_same_but_toggles(first: EvaluationConfiguration, second: EvaluationConfiguration) -> bool:
    """Return whether two differ in toggles alone: the same release, arguments, weights and load."""
    same = {"name": "", "revert": [], "enable": [], "like": "", "against": ""}
    return bool(msgspec.structs.replace(first, **same) == msgspec.structs.replace(second, **same))


def parse_strength(word: str, axes: int) -> int:
    """Parse the number of axes at a time; 0 if the word is no strength."""
    if word == "all":
        return axes
    return STRENGTH_BY_WORD.get(word) or (int(word) if word.isdecimal() else 0)


def to_list(choice: ValueChoice) -> list[str]:
    return [choice] if isinstance(choice, str) else choice
