"""The parameters of a module's exports, by their names in the C++ host function.

An export is the pair that a loader is given (`load_jit`): the name that Python calls, and a C++
expression such as `StoreKVCacheKernel<1024, 1024, 128, true>::run`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness.core.cpp_tokens import CppText


class ExportingModule:
    """A loaded module: each of its functions is called as a host call, with its tensors by name.

    An export may have any name, so that a method of this class has none without an underscore.
    """

    def __init__(
        self, module: Any, name: str, exports: dict[str, str], files: Iterable[str]
    ) -> None:
        self._module, self._name = module, name
        self._exports, self._files = exports, files  # C++ expressions by exported name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        function = getattr(self._module, name)
        if not callable(function):
            return function
        names = find_parameter_names(self._exports.get(name, name), self._files)
        wrapped = self._wrap_export(name, names, function)
        setattr(self, name, wrapped)
        return wrapped

    def _wrap_export(self, name: str, names: tuple[str, ...], function: Any) -> Any:
        raise NotImplementedError


def find_parameter_names(expression: str, files: Iterable[str]) -> tuple[str, ...]:
    """Return the names in order; empty if no file defines the function."""
    parts = _strip_template_arguments(expression).split("::")
    words = [word for word in (re.sub(r"\W", "", part) for part in parts) if word]
    for file in files:
        try:
            source = CppText(Path(file).read_text())
        except (OSError, UnicodeDecodeError):
            continue
        for wanted in (".".join(words[-2:]), words[-1]):
            for definition in source.definitions:
                if definition.parameters and definition.name == wanted:
                    return _read_names(source, *definition.parameters)
    return ()


def _strip_template_arguments(expression: str) -> str:
    text, depth = "", 0
    for character in expression:
        depth += (character == "<") - (character == ">")
        if not depth and character != ">":
            text += character
    return text


def _read_names(source: CppText, opening: int, closing: int) -> tuple[str, ...]:
    """Read the last word of each parameter, in front of its default value."""
    names, name, depth, has_default = [], "", 0, False
    for index in range(opening + 1, closing + 1):
        token = source.tokens[index]
        if index == closing or (token.text == "," and depth == 0):
            if name:
                names.append(name)
            name, has_default = "", False
            continue
        depth += (token.text in "<([{") - (token.text in ">)]}") - (token.text == ">>") * 2
        if token.text == "=" and depth == 0:
            has_default = True
        if token.kind == "word" and depth == 0 and not has_default:
            name = token.text
    return tuple(names)
