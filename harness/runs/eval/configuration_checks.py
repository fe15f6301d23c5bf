"""Checks of a matrix's configurations and faults, before anything is served."""

from __future__ import annotations

import re
import shlex
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from harness.core.device import VIRTUAL
from harness.core.errors import UnfixError
from harness.matrices import reader
from harness.matrices.schema import EvaluationConfiguration, FaultPlacement, MatrixFile
from harness.workers.servers import adaptations

TRANSFORMERS_ENGINE = "transformers"
OPTIONAL_TASKS = ("long",)  # tasks of this project that only run when named
MODEL_FOLDERS = ("fixtures/models/trained", "fixtures/models/drawn")
DEVICES = ("auto", "cpu", "cuda", VIRTUAL)
_NAME_PATTERN = re.compile(r"\w[\w.+-]*")


def read_matrix(file: Path) -> MatrixFile:
    """Read the configurations of a file; raise with the first problem and its line."""
    document, matrix = reader.read_matrix_file(file, reader.LISTED)
    try:
        check_matrix(matrix)
    except MatrixError as error:
        raise document.make_error_at(str(error), *error.steps) from error
    return matrix


class MatrixError(UnfixError):
    """A matrix that cannot be evaluated; `steps` lead to the value in its file."""

    def __init__(self, problem: str, *steps: str | int) -> None:
        super().__init__(problem)
        self.steps = steps


def check_matrix(matrix: MatrixFile) -> None:
    """Refuse values out of range, unknown names and circular comparisons."""
    names = [one.name for one in matrix.configurations]
    if not names:
        raise MatrixError("a matrix without configurations", "configurations")
    if doubled := {name for name in names if names.count(name) > 1}:
        text = f"two configurations are called {', '.join(sorted(doubled))}"
        raise MatrixError(text, "configurations")
    for key, is_valid, problem in (
        ("device", matrix.device in DEVICES, f"one of {', '.join(DEVICES)}, not {matrix.device}"),
        ("items", matrix.items >= 1, "a number of items, and 1 at least"),
        ("concurrency", matrix.concurrency >= 1, "a number of requests, and 1 at least"),
        ("within", matrix.within >= 1, "a number of seconds, and 1 at least"),
        ("tolerance", 0 < matrix.tolerance < 1, "a share between 0 and 1"),
    ):
        if not is_valid:
            raise MatrixError(f"{key} is {problem}", key)
    _check_arguments("serve", matrix.serve, "serve")
    for index, configuration in enumerate(matrix.configurations):
        _check_configuration(configuration, matrix, index)
    _check_order(matrix)
    pairs: set[tuple[str, str]] = set()
    for index, fault in enumerate(matrix.faults):
        _check_fault(fault, matrix, index)
        for name in fault.where:
            if (fault.toggle, name) in pairs:
                raise MatrixError(f"{fault.toggle} is planted in {name} twice", "faults", index)
            pairs.add((fault.toggle, name))


def _check_configuration(
    configuration: EvaluationConfiguration, matrix: MatrixFile, index: int
) -> None:
    name, steps = configuration.name, ("configurations", index)
    if not _NAME_PATTERN.fullmatch(name):
        text = f"{name!r} is no name: letters, digits, dots, dashes"
        raise MatrixError(text, *steps, "name")
    for key, count in (("items", configuration.items), ("concurrency", configuration.concurrency)):
        if count < 0:
            raise MatrixError(f"{name}: {key} is {count}, less than none", *steps, key)
    if not (configuration.tasks or matrix.tasks):
        raise MatrixError(f"{name} has no tasks", *steps)
    _check_arguments(name, configuration.serve, *steps, "serve")
    if configuration.engine not in ("sglang", TRANSFORMERS_ENGINE):
        raise MatrixError(f"{name}: no engine is called {configuration.engine}", *steps, "engine")
    of_sglang = (
        configuration.serve
        or configuration.revert
        or configuration.enable
        or configuration.stand_ins
        or configuration.draft
    )
    if configuration.engine == TRANSFORMERS_ENGINE and of_sglang:
        raise MatrixError(f"{name}: plain transformers takes a model, and no SGLang key", *steps)
    for stand_in in configuration.stand_ins:
        if stand_in not in adaptations.DESCRIPTIONS:
            known = ", ".join(sorted(adaptations.DESCRIPTIONS))
            text = f"{name}: no stand-in is called {stand_in}; there are {known}"
            raise MatrixError(text, *steps, "stand-ins")
    for key, base_name in (("like", configuration.like), ("against", configuration.against)):
        if base_name:
            _check_base(configuration, base_name, matrix, *steps, key)


def _check_base(
    configuration: EvaluationConfiguration,
    base_name: str,
    matrix: MatrixFile,
    *steps: str | int,
) -> None:
    name = configuration.name
    if base_name == name:
        raise MatrixError(f"{name} is compared with itself", *steps)
    base = next((other for other in matrix.configurations if other.name == base_name), None)
    if base is None:
        raise MatrixError(f"{name} is compared with {base_name}, which is not there", *steps)
    if set(configuration.tasks or matrix.tasks) - set(base.tasks or matrix.tasks):
        raise MatrixError(f"{name} has tasks that {base_name} does not have", *steps)
    if (configuration.items or matrix.items) > (base.items or matrix.items):
        raise MatrixError(f"{name} has more items than {base_name}", *steps)


def _check_order(matrix: MatrixFile) -> None:
    """Refuse a circle: a configuration is served after those it is compared with."""
    bases = {one.name: one.base_names for one in matrix.configurations}
    try:
        TopologicalSorter(bases).prepare()
    except CycleError as error:
        names = ", ".join(sorted(set(error.args[1])))
        raise MatrixError(f"compared with each other in a circle: {names}") from error


def _check_fault(fault: FaultPlacement, matrix: MatrixFile, index: int) -> None:
    steps = ("faults", index)
    if bool(fault.revert) == bool(fault.enable):
        raise MatrixError("a fault is either `revert:` or `enable:` a toggle", *steps)
    if fault.expect not in ("caught", "anything"):
        raise MatrixError(f"{fault.toggle}: expect is 'caught' or 'anything'", *steps, "expect")
    if fault.items < 0:
        raise MatrixError(f"{fault.toggle}: items is {fault.items}, less than none", *steps)
    if not fault.where:
        raise MatrixError(f"{fault.toggle} is planted in no configuration", *steps, "in")
    for name in fault.where:
        configuration = next((each for each in matrix.configurations if each.name == name), None)
        problem = ""
        if configuration is None:
            problem = f"is planted in {name}, which is not there"
        elif configuration.engine == TRANSFORMERS_ENGINE:
            problem = f"is planted in {name}, which is not SGLang"
        elif set(fault.tasks) - set(configuration.tasks or matrix.tasks):
            problem = f"has tasks that {name} does not have"
        if problem:
            raise MatrixError(f"{fault.toggle} {problem}", *steps)


def _check_arguments(owner: str, arguments: str, *steps: str | int) -> None:
    try:
        shlex.split(arguments)
    except ValueError as error:
        raise MatrixError(f"{owner}: {arguments!r}: {error}", *steps) from error
