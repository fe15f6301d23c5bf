"""A matrix file: which configurations are served, what they are compared with, which faults.

    name: cpu
    items: 24
    configurations:
      - name: llama-triton
        model: llama
        serve: --device cpu --attention-backend triton
        like: llama-reference          # must answer the same, token by token
    faults:
      - revert: forgotten-prefix-positions
        in: [llama-triton]
"""

from __future__ import annotations

import shlex
from pathlib import Path

import msgspec
import yaml

from harness.errors import UnfixError
from harness.evals import paired
from harness.serving import adaptations

REFERENCE = "transformers"
TASKS = ("recall", "copying", "needle", "shared")
MODELS = "fixtures/models/trained"
FOLDER = "suites/accuracy/matrices"


class Configuration(msgspec.Struct, forbid_unknown_fields=True, rename={"stand_ins": "stand-ins"}):
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
    like: str = ""  # the configuration whose tokens these must be
    against: str = ""  # the configuration whose accuracy these must have
    tasks: list[str] = []
    items: int = 0
    concurrency: int = 0
    revert: list[str] = []
    enable: list[str] = []
    absent: str = ""  # why it cannot be run: a row with its reason

    @property
    def words(self) -> list[str]:
        return shlex.split(self.serve)

    @property
    def bases(self) -> list[str]:
        return [name for name in (self.like, self.against) if name]


class FaultIn(msgspec.Struct, forbid_unknown_fields=True, rename={"where": "in"}):
    """A toggle that is put in on purpose in some of the configurations."""

    where: list[str]
    revert: str = ""
    enable: str = ""
    expect: str = "caught"  # or 'anything': what hardware and size make of it is only told
    tasks: list[str] = []
    items: int = 0

    @property
    def toggle(self) -> str:
        return self.revert or self.enable


class Matrix(msgspec.Struct, forbid_unknown_fields=True):
    """All of one file."""

    name: str
    configurations: list[Configuration]
    faults: list[FaultIn] = []
    serve: str = ""  # for all of them, before their own
    tasks: list[str] = msgspec.field(default_factory=lambda: list(TASKS))
    items: int = paired.ITEMS
    concurrency: int = 8
    seed: int = 0
    release: str = ""
    dtype: str = ""
    device: str = "auto"
    tolerance: float = paired.TOLERANCE
    environment: dict[str, str] = {}

    def one(self, name: str) -> Configuration:
        return next(one for one in self.configurations if one.name == name)

    @property
    def cells(self) -> int:
        """Comparisons of accuracy that share the false alarms of a night."""
        by_tasks = [
            len(one.tasks or self.tasks) for one in self.configurations if one.against
        ]
        by_faults = [
            len(fault.where) * len(fault.tasks or self.tasks) for fault in self.faults
        ]
        return max(1, sum(by_tasks) + sum(by_faults))


def read(file: Path) -> Matrix:
    """A matrix file, or what is wrong with it and where."""
    try:
        data = yaml.safe_load(file.read_text())
    except OSError as error:
        raise UnfixError(f"{file}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise UnfixError(f"{file}: {error}") from error
    try:
        matrix = msgspec.convert(data, Matrix)
        check(matrix)
    except (msgspec.ValidationError, UnfixError) as error:
        raise UnfixError(f"{file}: {error}") from error
    return matrix


def check(matrix: Matrix) -> None:
    names = [one.name for one in matrix.configurations]
    if not names:
        raise UnfixError("a matrix without configurations")
    doubled = {name for name in names if names.count(name) > 1}
    if doubled:
        raise UnfixError(f"two configurations are called {', '.join(sorted(doubled))}")
    for one in matrix.configurations:
        for base in one.bases:
            if base not in names:
                raise UnfixError(f"{one.name} is compared with {base}, which is not there")
            if base == one.name:
                raise UnfixError(f"{one.name} is compared with itself")
            if matrix.one(base).bases == [one.name]:
                raise UnfixError(f"{one.name} and {base} are compared with each other")
            theirs, mine = matrix.one(base).tasks or matrix.tasks, one.tasks or matrix.tasks
            if set(mine) - set(theirs):
                raise UnfixError(f"{one.name} has tasks that {base} does not have")
            if (one.items or matrix.items) > (matrix.one(base).items or matrix.items):
                raise UnfixError(f"{one.name} has more items than {base}")
        if one.engine not in ("sglang", REFERENCE):
            raise UnfixError(f"{one.name}: no engine is called {one.engine}")
        unknown = set(one.stand_ins) - set(adaptations.WORDS)
        if unknown:
            known = ", ".join(sorted(adaptations.WORDS))
            raise UnfixError(f"{one.name}: no stand-in is called {', '.join(unknown)}; {known}")
    for fault in matrix.faults:
        if bool(fault.revert) == bool(fault.enable):
            raise UnfixError("a fault is either `revert:` or `enable:` a toggle")
        if fault.expect not in ("caught", "anything"):
            raise UnfixError(f"{fault.toggle}: expect is 'caught' or 'anything'")
        for name in fault.where:
            if name not in names:
                raise UnfixError(f"{fault.toggle} is put into {name}, which is not there")
        if not fault.where:
            raise UnfixError(f"{fault.toggle} is put into no configuration")
    if matrix.items < 1 or any(one.items < 0 for one in matrix.configurations):
        raise UnfixError("a task with no items says nothing")
    if not 0 < matrix.tolerance < 1:
        raise UnfixError("tolerance is a share between 0 and 1")
