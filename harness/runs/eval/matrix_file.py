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

What is wrong with a file is said before anything is served.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import msgspec
import yaml

from harness.core.errors import UnfixError
from harness.runs.eval import lm_eval_client, paired_statistics
from harness.workers.servers import adaptations

TRANSFORMERS_ENGINE = "transformers"
DEFAULT_TASKS = ("recall", "copying", "needle", "shared")
OPTIONAL_TASKS = ("long",)  # ours, too, for those who ask for it
MODEL_FOLDERS = ("fixtures/models/trained", "fixtures/models/drawn")
MATRICES_FOLDER = "suites/accuracy/matrices"
DEVICES = ("auto", "cpu", "cuda")
_NAME_PATTERN = re.compile(r"\w[\w.+-]*")


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
    like: str = ""  # the configuration whose tokens these must be
    against: str = ""  # the configuration whose accuracy these must have
    tasks: list[str] = []
    items: int = 0
    concurrency: int = 0
    revert: list[str] = []
    enable: list[str] = []
    absent: str = ""  # why it cannot be run: a row with its reason

    @property
    def server_arguments(self) -> list[str]:
        return shlex.split(self.serve)

    @property
    def base_names(self) -> list[str]:
        return [name for name in (self.like, self.against) if name]


class FaultPlacement(msgspec.Struct, forbid_unknown_fields=True, rename={"where": "in"}):
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


class EvaluationMatrix(msgspec.Struct, forbid_unknown_fields=True):
    """All of one file."""

    name: str
    configurations: list[EvaluationConfiguration]
    faults: list[FaultPlacement] = []
    serve: str = ""  # for all of them, before their own
    tasks: list[str] = msgspec.field(default_factory=lambda: list(DEFAULT_TASKS))
    items: int = paired_statistics.DEFAULT_ITEMS
    concurrency: int = 8
    seed: int = 0
    release: str = ""
    dtype: str = ""
    device: str = "auto"
    tolerance: float = paired_statistics.TOLERANCE
    within: int = round(
        lm_eval_client.REQUEST_SECONDS
    )  # seconds for a request's answer, or the server hangs
    environment: dict[str, str] = {}

    def find_configuration(self, name: str) -> EvaluationConfiguration:
        return next(one for one in self.configurations if one.name == name)

    @property
    def comparison_count(self) -> int:
        """Comparisons of accuracy that share the false alarms of a night."""
        by_tasks = [len(one.tasks or self.tasks) for one in self.configurations if one.against]
        by_faults = [len(fault.where) for fault in self.faults]
        return max(1, sum(by_tasks) + sum(by_faults))


def is_same_but_toggles(first: EvaluationConfiguration, second: EvaluationConfiguration) -> bool:
    """Whether nothing but toggles is between two: the same release, arguments, weights and load."""
    same = {"name": "", "revert": [], "enable": [], "like": "", "against": ""}
    return bool(msgspec.structs.replace(first, **same) == msgspec.structs.replace(second, **same))


def read_matrix(file: Path) -> EvaluationMatrix:
    """A matrix file, or what is wrong with it and where."""
    try:
        data = yaml.safe_load(file.read_text())
    except OSError as error:
        raise UnfixError(f"{file}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: no UTF-8, or a date that is none
        raise UnfixError(f"{file}: {error}") from error
    if data is None:
        raise UnfixError(f"{file}: it is empty")
    try:
        matrix = msgspec.convert(data, EvaluationMatrix)
        check_matrix(matrix)
    except (msgspec.ValidationError, UnfixError) as error:
        raise UnfixError(f"{file}: {error}") from error
    return matrix


def check_matrix(matrix: EvaluationMatrix) -> None:
    names = [one.name for one in matrix.configurations]
    if not names:
        raise UnfixError("a matrix without configurations")
    doubled = {name for name in names if names.count(name) > 1}
    if doubled:
        raise UnfixError(f"two configurations are called {', '.join(sorted(doubled))}")
    if matrix.device not in DEVICES:
        raise UnfixError(f"device is one of {', '.join(DEVICES)}, not {matrix.device}")
    if matrix.items < 1:
        raise UnfixError("a task with no items says nothing")
    if matrix.concurrency < 1:
        raise UnfixError("concurrency is a number of requests, and 1 at least")
    if matrix.within < 1:
        raise UnfixError("within is a number of seconds, and 1 at least")
    if not 0 < matrix.tolerance < 1:
        raise UnfixError("tolerance is a share between 0 and 1")
    _check_arguments("serve", matrix.serve)
    for one in matrix.configurations:
        _check_configuration(one, matrix)
        _check_bases(one, matrix)
    _check_order(matrix)
    put: set[tuple[str, str]] = set()
    for fault in matrix.faults:
        _check_fault(fault, matrix)
        for name in fault.where:
            if (fault.toggle, name) in put:
                raise UnfixError(f"{fault.toggle} is put into {name} twice")
            put.add((fault.toggle, name))


def _check_configuration(configuration: EvaluationConfiguration, matrix: EvaluationMatrix) -> None:
    if not _NAME_PATTERN.fullmatch(configuration.name):
        raise UnfixError(f"{configuration.name!r} is no name: letters, digits, dots, dashes")
    if configuration.items < 0:
        raise UnfixError(f"{configuration.name}: a task with no items says nothing")
    if configuration.concurrency < 0:
        raise UnfixError(f"{configuration.name}: concurrency is a number of requests")
    if not (configuration.tasks or matrix.tasks):
        raise UnfixError(f"{configuration.name} has no tasks")
    _check_arguments(configuration.name, configuration.serve)
    if configuration.engine not in ("sglang", TRANSFORMERS_ENGINE):
        raise UnfixError(f"{configuration.name}: no engine is called {configuration.engine}")
    if configuration.engine == TRANSFORMERS_ENGINE and (
        configuration.serve
        or configuration.revert
        or configuration.enable
        or configuration.stand_ins
        or configuration.draft
    ):
        raise UnfixError(
            f"{configuration.name}: plain transformers takes a model, and nothing of SGLang's"
        )
    unknown = set(configuration.stand_ins) - set(adaptations.DESCRIPTIONS)
    if unknown:
        known = ", ".join(sorted(adaptations.DESCRIPTIONS))
        strange = ", ".join(sorted(unknown))
        raise UnfixError(
            f"{configuration.name}: no stand-in is called {strange}; there are {known}"
        )


def _check_bases(configuration: EvaluationConfiguration, matrix: EvaluationMatrix) -> None:
    for name in configuration.base_names:
        if name == configuration.name:
            raise UnfixError(f"{configuration.name} is compared with itself")
        base = next((other for other in matrix.configurations if other.name == name), None)
        if base is None:
            raise UnfixError(f"{configuration.name} is compared with {name}, which is not there")
        if set(configuration.tasks or matrix.tasks) - set(base.tasks or matrix.tasks):
            raise UnfixError(f"{configuration.name} has tasks that {name} does not have")
        if (configuration.items or matrix.items) > (base.items or matrix.items):
            raise UnfixError(f"{configuration.name} has more items than {name}")


def _check_order(matrix: EvaluationMatrix) -> None:
    """Whoever is compared with others is served after them; in a circle nobody can be."""
    left = list(matrix.configurations)
    while left:
        names = {one.name for one in left}
        ready = [one for one in left if not names & set(one.base_names)]
        if not ready:
            raise UnfixError(f"in a circle, compared with each other: {', '.join(sorted(names))}")
        left = [one for one in left if one not in ready]


def _check_fault(fault: FaultPlacement, matrix: EvaluationMatrix) -> None:
    if bool(fault.revert) == bool(fault.enable):
        raise UnfixError("a fault is either `revert:` or `enable:` a toggle")
    if fault.expect not in ("caught", "anything"):
        raise UnfixError(f"{fault.toggle}: expect is 'caught' or 'anything'")
    if fault.items < 0:
        raise UnfixError(f"{fault.toggle}: a task with no items says nothing")
    if not fault.where:
        raise UnfixError(f"{fault.toggle} is put into no configuration")
    for name in fault.where:
        one = next((one for one in matrix.configurations if one.name == name), None)
        if one is None:
            raise UnfixError(f"{fault.toggle} is put into {name}, which is not there")
        if one.engine == TRANSFORMERS_ENGINE:
            raise UnfixError(f"{fault.toggle} is put into {name}, which is not SGLang")
        if set(fault.tasks) - set(one.tasks or matrix.tasks):
            raise UnfixError(f"{fault.toggle} has tasks that {name} does not have")


def _check_arguments(owner: str, arguments: str) -> None:
    try:
        shlex.split(arguments)
    except ValueError as error:
        raise UnfixError(f"{owner}: {arguments!r}: {error}") from error
