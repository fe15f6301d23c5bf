"""A work's command: its template, what the values of a cell make of it, and what it needs.

`{axis}` stands for the value; `{words}`, a word by itself, for what all the values add; `{{` is a
brace.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping

from harness.core.errors import UnfixError
from harness.runs.matrix.cell_plan import MachineNeeds
from harness.runs.matrix.matrix_schema import (
    RESERVED_AXIS,
    CellWork,
    MatrixSpec,
    suggest_nearest,
    to_list,
)

PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")
PREFIX_BY_KIND = {"suites": ["unfix", "prove"], "eval": ["unfix", "eval"], "command": []}
WORDS_PLACEHOLDER = f"{{{RESERVED_AXIS}}}"


def split_template(work: CellWork) -> list[str]:
    """The template of a work, word by word."""
    return [*PREFIX_BY_KIND[work.kind], *shlex.split(work.command)]


def find_placeholders(text: str) -> list[str]:
    return [found[1] for found in PLACEHOLDER.finditer(text) if found[1] is not None]


def find_template_problem(work: CellWork, matrix: MatrixSpec) -> str:
    """What is wrong with a work; '' if nothing."""
    try:
        words = split_template(work)
    except ValueError as error:
        return f"{work.command!r}: {error}"
    if not words:
        return "an empty command"
    for word in words:
        if RESERVED_AXIS in find_placeholders(word) and word != WORDS_PLACEHOLDER:
            return f"{word!r}: {WORDS_PLACEHOLDER} is a word by itself"
    for text in [*words, *work.environment.values(), *_list_value_texts(matrix)]:
        for name in find_placeholders(text):
            if name not in matrix.axes and text != WORDS_PLACEHOLDER:
                return (
                    f"{{{name}}} in {text!r} is no axis{suggest_nearest(name, matrix.axes)} "
                    "(a brace itself is written twice)"
                )
    return ""


def _list_value_texts(matrix: MatrixSpec) -> list[str]:
    values = [
        matrix.get_value(axis, name) for axis in matrix.axes for name in matrix.list_values(axis)
    ]
    return [text for value in values for text in (value.words, *value.environment.values())]


def find_unused_axis(matrix: MatrixSpec) -> str:
    """An axis whose values make no difference to any work; '' if each does."""
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
    """Whether a work is run in a cell; an axis that does not apply there meets no condition."""
    return all(values.get(axis) in to_list(words) for axis, words in work.when.items())


def fill_command(work: CellWork, values: Mapping[str, str], matrix: MatrixSpec) -> list[str]:
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
    work: CellWork, values: Mapping[str, str], matrix: MatrixSpec
) -> dict[str, str]:
    """The values' variables and then the work's own; two values may not disagree on one."""
    fill = _make_filler(values)
    found: dict[str, str] = {}
    for axis, name in values.items():
        for variable, text in matrix.get_value(axis, name).environment.items():
            filled = fill(text)
            if found.setdefault(variable, filled) != filled:
                raise UnfixError(
                    f"{describe_values(values)}: {axis} sets {variable}={filled}, "
                    f"and another axis {found[variable]}"
                )
    return found | {variable: fill(text) for variable, text in work.environment.items()}


def combine_needs(work: CellWork, values: Mapping[str, str], matrix: MatrixSpec) -> MachineNeeds:
    """The most that the work or a value asks of each."""
    asked = [matrix.get_value(axis, name).needs for axis, name in values.items()]
    kinds = {work.needs.gpu, *(one.gpu for one in asked)} - {""}
    if len(kinds) > 1:
        raise UnfixError(
            f"{describe_values(values)}: it needs GPUs of {' and of '.join(sorted(kinds))}"
        )
    custom = dict(work.needs.custom)
    for one in asked:
        for name, amount in one.custom.items():
            custom[name] = max(amount, custom.get(name, 0.0))
    return MachineNeeds(
        cpus=max(work.needs.cpus, *(one.cpus for one in asked)),
        gpus=max(work.needs.gpus, *(one.gpus for one in asked)),
        gpu=next(iter(kinds), ""),
        custom=dict(sorted(custom.items())),
    )


def describe_values(values: Mapping[str, str]) -> str:
    return ", ".join(f"{axis} {value}" for axis, value in values.items())


def _make_filler(values: Mapping[str, str]) -> Callable[[str], str]:
    def put(found: re.Match[str]) -> str:
        if found[1] is None:
            return found[0][0]
        if found[1] not in values:
            raise UnfixError(
                f"{{{found[1]}}} is named by a command, and does not apply where {describe_values(values)}: "
                f"let the values of {found[1]} bring their words, or give the work a `when:`"
            )
        return values[found[1]]

    return lambda text: PLACEHOLDER.sub(put, text)
