"""Who refers to a function, over a whole release, by names alone.

A node is a definition at the top level of a module: a function, or a class with its methods. A
definition refers to another if it contains its name, and lies in the same module or names that
module, or if no other module defines the name. So a call through a table or `getattr` is missed,
and a name in a string or comment counts: the result shows where to look and proves nothing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

_DEFINITION = re.compile(r"(?:async )?(?:def|class) (\w+)")
_WORD = re.compile(r"\w+")
_NAME = re.compile(r"[A-Za-z_]\w{2,}")
_CONDITION = re.compile(
    r"server_args\.(\w+)|\b(SGLANG_\w+)|\b(_?(?:is|support|use|enable)_"
    r"(?:hip|npu|xpu|musa|cpu|sm\d+\w*|blackwell\w*|gfx\w*|hopper\w*|aiter|flashinfer\w*))\b"
)
_LINES_BEFORE = 12  # lines in front of a reference whose conditions count
_MAX_STEPS = 6
_KERNEL_FOLDERS = (
    "sglang.kernels.",
    "sglang.jit_kernel.",
    "sglang.srt.layers.attention.triton_ops.",
)


@dataclass(slots=True)
class Definition:
    """A function or a class at the top level of a module."""

    module: str
    name: str
    first: int
    text: str = field(repr=False)

    @property
    def key(self) -> str:
        return f"{self.module}:{self.name}"


@dataclass(slots=True)
class Callers:
    """What leads to a function from outside of the kernels' folders."""

    entries: list[str] = field(default_factory=list)
    conditions: list[str] = field(default_factory=list)


class NameGraph:
    """The definitions of a release and their names."""

    def __init__(self, texts: Iterable[tuple[str, str]]) -> None:
        self._texts: dict[str, str] = {}
        self._words: dict[str, set[str]] = {}  # of the modules that were asked for
        self._definitions: dict[str, list[Definition]] = {}
        self._modules_by_name: dict[str, set[str]] = defaultdict(set)
        for module, text in texts:
            self._texts[module] = text
            self._definitions[module] = found = list(_split_definitions(module, text))
            for definition in found:
                self._modules_by_name[definition.name].add(module)
        self._references: dict[str, list[Definition]] = defaultdict(list)
        for found in self._definitions.values():
            for definition in found:
                for name in set(_NAME.findall(definition.text)) & self._modules_by_name.keys():
                    if name != definition.name:
                        self._references[name].append(definition)

    def find_definition(self, module: str, line: int) -> Definition | None:
        """Find the definition at a line of a module."""
        before = [
            definition
            for definition in self._definitions.get(module, ())
            if definition.first <= line
        ]
        return before[-1] if before else None

    def find_callers(self, starts: Iterable[Definition]) -> Callers:
        """Follow the references from these definitions until they leave the kernels' folders."""
        callers = Callers()
        pending = [(start, 0) for start in starts]
        origins = {start.module for start, _ in pending}
        seen = {start.key for start, _ in pending}
        while pending:
            called, steps = pending.pop(0)
            for caller in self._iterate_referring(called):
                is_inside = caller.module in origins or caller.module.startswith(_KERNEL_FOLDERS)
                if caller.key in seen:
                    continue
                seen.add(caller.key)
                callers.conditions += _find_conditions(caller.text, called.name)
                if not is_inside:
                    callers.entries.append(caller.key)
                elif steps < _MAX_STEPS:
                    pending.append((caller, steps + 1))
        callers.entries.sort()
        callers.conditions = sorted(set(callers.conditions))
        return callers

    def _iterate_referring(self, called: Definition) -> Iterator[Definition]:
        is_unique = len(self._modules_by_name[called.name]) == 1
        module_name = called.module.rpartition(".")[2]
        for caller in self._references[called.name]:
            is_same = caller.module == called.module
            if is_unique or is_same or module_name in self._list_words(caller.module):
                yield caller

    def _list_words(self, module: str) -> set[str]:
        if module not in self._words:
            self._words[module] = set(_WORD.findall(self._texts[module]))
        return self._words[module]


def _split_definitions(module: str, text: str) -> Iterator[Definition]:
    lines = text.splitlines()
    starts = [
        (number, match[1])
        for number, line in enumerate(lines)
        if (match := _DEFINITION.match(line))
    ]
    for number, name in starts:
        end = number + 1
        while end < len(lines) and (not lines[end] or lines[end][0] in " \t)]}#"):
            end += 1
        yield Definition(module, name, number + 1, "\n".join(lines[number:end]))


def _find_conditions(text: str, name: str) -> list[str]:
    lines = text.splitlines()
    conditions = []
    for number, line in enumerate(lines):
        if name in line:
            before = "\n".join(lines[max(0, number - _LINES_BEFORE) : number + 1])
            for argument, variable, device in _CONDITION.findall(before):
                conditions.append(
                    f"--{argument.replace('_', '-')}"
                    if argument
                    else variable or device.lstrip("_")
                )
    return conditions
