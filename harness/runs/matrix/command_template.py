"""The command of a cell: a template filled with the cell's values, and the resources it needs.

`{axis}` becomes the cell's value of that axis. `{words}`, an argument by itself, becomes the
arguments that all values of the cell add. `{{` is a brace.

    serve --release {release} {words}      with release 0.5.18 and page 16 (--page-size 16):
    serve --release 0.5.18 --page-size 16
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping

from harness.core.errors import UnfixError
from harness.core.yaml_document import suggest_nearest
from harness.matrices.schema import RESERVED_AXIS, CellWork, MachineNeeds, MatrixFile, to_list

PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")
PREFIX_BY_KIND = {"suites": ["unfix", "prove"], "eval": ["unfix", "eval"], "command": []}
WORDS_PLACEHOLDER = f"{{{RESERVED_AXIS}}}"


def split_template(work: CellWork) -> list[str]:
    """Return the arguments of a work's template."""
    return [*PREFIX_BY_KIND[work.kind], *shlex.split(work.command)]


def find_placeholders(text: str) -> list[str]:
    return [match[1] for match in PLACEHOLDER.finditer(text) if match[1] is not None]


def find_template_problem(work: CellWork, matrix: MatrixFile) -> str:
    """Find the first problem of a work's template; '' if it is valid."""
    try:
        words = split_template(work)
    except ValueError as error:
        return f"{work.command!r}: {error}"
    if not words:
        return "an empty command"
    for word in words:
        if RESERVED_AXIS in find_placeholders(word) and word != WORDS_PLACEHOLDER:
            return f"{word!r}: {WORDS_PLACEHOLDER} is an argument by itself"
    for text in [*words, *work.environment.values(), *_list_value_texts(matrix)]:
        for name in find_placeholders(text):
            if name not in matrix.axes and text != WORDS_PLACEHOLDER:
                return (
                    f"{{{name}}} in {text!r} is no axis{suggest_nearest(name, matrix.axes)} "
                    "(a brace itself is written twice)"
                )
    return ""


def _list_value_texts(matrix: MatrixFile) -> list[str]:
    values = [
        matrix.get_value(axis, name) for axis in matrix.axes for name in matrix.list_values(axis)
    ]
    return [text for value in values for text in (value.words, *value.environment.values())]


def find_unused_axis(matrix: MatrixFile) -> str:
    """Find the first axis whose values change no command; '' if every axis changes one."""
    named: set[str] = set()
    takes_words = False
    for work in matrix.run.values():
        texts = [*split_template(work), *work.environment.values()]
        takes_words = takes_words or WORDS_PLACEHOLDER in texts
        named.update(name for text in texts for name in find_placeholders(text))
        named.update(work.when)
    named.update(name for text in _list_value_texts(matrix) for name in find_placeholders(text))
    for axis in matrix.axes:
        values = [matrix.get_value(axis, name) for name in matrix.list_values(axis)]
        adds = any(
            value.environment or value.needs != type(value.needs)() or (value.words and takes_words)
            for value in values
        )
        if axis not in named and not adds:
            return axis
    return ""


def is_work_run(work: CellWork, values: Mapping[str, str]) -> bool:
    """Return whether a work runs in a cell; an axis that does not apply meets no condition."""
    return all(values.get(axis) in to_list(words) for axis, words in work.when.items())


def fill_command(work: CellWork, values: Mapping[str, str], matrix: MatrixFile) -> list[str]:
    fill = _make_filler(values)
    filled: list[str] = []
    for word in split_template(work):
        if word != WORDS_PLACEHOLDER:
            filled.append(fill(word))
            continue
        for axis, name in values.items():
            filled += [fill(part) for part in shlex.split(matrix.get_value(axis, name).words)]
    return filled


def fill_environment(
    work: CellWork, values: Mapping[str, str], matrix: MatrixFile
) -> dict[str, str]:
    """Join the variables of values and work; refuse two values that set one differently."""
    fill = _make_filler(values)
    environment: dict[str, str] = {}
    for axis, name in values.items():
        for variable, text in matrix.get_value(axis, name).environment.items():
            filled = fill(text)
            if environment.setdefault(variable, filled) != filled:
                raise UnfixError(
                    f"{describe_values(values)}: {axis} sets {variable}={filled}, "
                    f"and another axis {environment[variable]}"
                )
    return environment | {variable: fill(text) for variable, text in work.environment.items()}


def combine_needs(work: CellWork, values: Mapping[str, str], matrix: MatrixFile) -> MachineNeeds:
    """Combine the needs of work and values: the largest for each resource."""
    requirements = [matrix.get_value(axis, name).needs for axis, name in values.items()]
    kinds = {work.needs.gpu, *(one.gpu for one in requirements)} - {""}
    if len(kinds) > 1:
        raise UnfixError(
            f"{describe_values(values)}: it needs GPUs of {' and of '.join(sorted(kinds))}"
        )
    custom = dict(work.needs.custom)
    for requirement in requirements:
        for name, amount in requirement.custom.items():
            custom[name] = max(amount, custom.get(name, 0.0))
    return MachineNeeds(
        cpus=max(work.needs.cpus, *(one.cpus for one in requirements)),
        gpus=max(work.needs.gpus, *(one.gpus for one in requirements)),
        gpu=next(iter(kinds), ""),
        custom=dict(sorted(custom.items())),
    )


def describe_values(values: Mapping[str, str]) -> str:
    return ", ".join(f"{axis} {value}" for axis, value in values.items())


def _make_filler(values: Mapping[str, str]) -> Callable[[str], str]:
    def replace(match: re.Match[str]) -> str:
        axis = match[1]
        if axis is None:
            return match[0][0]
        if axis not in values:
            raise UnfixError(
                f"{{{axis}}} is named by a command, and does not apply where "
                f"{describe_values(values)}: let the values of {axis} add their arguments, "
                "or give the work a `when:`"
            )
        return values[axis]

    return lambda text: PLACEHOLDER.sub(replace, text)
