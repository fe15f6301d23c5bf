"""A work's command: its template, what the values of a cell make of it, and what it needs.

`{axis}` stands for the value; `{words}`, a word by itself, for what all the values add; `{{` is a
brace.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping

from harness.errors import UnfixError
from harness.matrix.schema import RESERVED, Matrix, Work, listed, nearest
from harness.matrix.values import Needs

HOLE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")
OURS = {"suites": ["unfix", "prove"], "eval": ["unfix", "eval"], "command": []}
ALL_WORDS = f"{{{RESERVED}}}"


def words_of(work: Work) -> list[str]:
    """The template of a work, word by word."""
    return [*OURS[work.kind], *shlex.split(work.command)]


def holes(text: str) -> list[str]:
    return [found[1] for found in HOLE.finditer(text) if found[1] is not None]


def problem(work: Work, matrix: Matrix) -> str:
    """What is wrong with a work; '' if nothing."""
    try:
        words = words_of(work)
    except ValueError as error:
        return f"{work.command!r}: {error}"
    if not words:
        return "an empty command"
    for word in words:
        if RESERVED in holes(word) and word != ALL_WORDS:
            return f"{word!r}: {ALL_WORDS} is a word by itself"
    for text in [*words, *work.environment.values(), *_texts_of_values(matrix)]:
        for name in holes(text):
            if name not in matrix.axes and text != ALL_WORDS:
                return (
                    f"{{{name}}} in {text!r} is no axis{nearest(name, matrix.axes)} "
                    "(a brace itself is written twice)"
                )
    return ""


def _texts_of_values(matrix: Matrix) -> list[str]:
    values = [matrix.value(axis, name) for axis in matrix.axes for name in matrix.values(axis)]
    return [text for value in values for text in (value.words, *value.environment.values())]


def without_effect(matrix: Matrix) -> str:
    """An axis whose values make no difference to any work; '' if each does."""
    named: set[str] = set()
    takes_words = False
    for work in matrix.run.values():
        texts = [*words_of(work), *work.environment.values()]
        takes_words = takes_words or ALL_WORDS in texts
        named.update(name for text in texts for name in holes(text))
        named.update(work.when)
    named.update(name for text in _texts_of_values(matrix) for name in holes(text))
    for axis in matrix.axes:
        values = [matrix.value(axis, name) for name in matrix.values(axis)]
        adds = any(
            value.environment or value.needs != type(value.needs)() or (value.words and takes_words)
            for value in values
        )
        if axis not in named and not adds:
            return axis
    return ""


def runs(work: Work, values: Mapping[str, str]) -> bool:
    """Whether a work is run in a cell; an axis that does not apply there meets no condition."""
    return all(values.get(axis) in listed(words) for axis, words in work.when.items())


def command(work: Work, values: Mapping[str, str], matrix: Matrix) -> list[str]:
    fill = _filler(values)
    filled: list[str] = []
    for word in words_of(work):
        if word != ALL_WORDS:
            filled.append(fill(word))
            continue
        for axis, name in values.items():
            filled += [fill(part) for part in shlex.split(matrix.value(axis, name).words)]
    return filled


def environment(work: Work, values: Mapping[str, str], matrix: Matrix) -> dict[str, str]:
    """The values' variables and then the work's own; two values may not disagree on one."""
    fill = _filler(values)
    found: dict[str, str] = {}
    for axis, name in values.items():
        for variable, text in matrix.value(axis, name).environment.items():
            filled = fill(text)
            if found.setdefault(variable, filled) != filled:
                raise UnfixError(
                    f"{said(values)}: {axis} sets {variable}={filled}, "
                    f"and another axis {found[variable]}"
                )
    return found | {variable: fill(text) for variable, text in work.environment.items()}


def needs(work: Work, values: Mapping[str, str], matrix: Matrix) -> Needs:
    """The most that the work or a value asks of each."""
    asked = [matrix.value(axis, name).needs for axis, name in values.items()]
    kinds = {work.needs.gpu, *(one.gpu for one in asked)} - {""}
    if len(kinds) > 1:
        raise UnfixError(f"{said(values)}: it needs GPUs of {' and of '.join(sorted(kinds))}")
    custom = dict(work.needs.custom)
    for one in asked:
        for name, amount in one.custom.items():
            custom[name] = max(amount, custom.get(name, 0.0))
    return Needs(
        cpus=max(work.needs.cpus, *(one.cpus for one in asked)),
        gpus=max(work.needs.gpus, *(one.gpus for one in asked)),
        gpu=next(iter(kinds), ""),
        custom=dict(sorted(custom.items())),
    )


def said(values: Mapping[str, str]) -> str:
    return ", ".join(f"{axis} {value}" for axis, value in values.items())


def _filler(values: Mapping[str, str]) -> Callable[[str], str]:
    def put(found: re.Match[str]) -> str:
        if found[1] is None:
            return found[0][0]
        if found[1] not in values:
            raise UnfixError(
                f"{{{found[1]}}} is named by a command, and does not apply where {said(values)}: "
                f"let the values of {found[1]} bring their words, or give the work a `when:`"
            )
        return values[found[1]]

    return lambda text: HOLE.sub(put, text)
