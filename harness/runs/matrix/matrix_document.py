"""A YAML file as words and lists and mappings of words, with the line of each.

No word is taken for anything else: `on` stays `on`, `1.10` stays `1.10`, and a key may be `16`.
"""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from harness.core.errors import UnfixError
from harness.core.located_yaml import LocatedYaml

YamlLoader: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
PATH_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|(\[\.\.\.\])")
Shape = TypeVar("Shape")


class MatrixFileError(UnfixError):
    """A matrix file that cannot be planned as it is written; names the file and the line."""

    def __init__(self, path: str, line: int, problem: str) -> None:
        super().__init__(f"{path}:{line}: {problem}")
        self.line = line
        self.problem = problem


class MatrixDocument(LocatedYaml):
    """What a file says, and where."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise UnfixError(f"{path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise MatrixFileError(self.path, 1, f"not UTF-8: {error.reason}") from error
        try:
            self.content = self.load_values(YamlLoader(text))
        except yaml.YAMLError as error:
            raise self.make_syntax_error(error, "YAML") from error

    def make_error(self, line: int, problem: str) -> MatrixFileError:
        return MatrixFileError(self.path, line, problem)

    def make_error_at(self, problem: str, *steps: str | int) -> MatrixFileError:
        return MatrixFileError(self.path, self.find_line(*steps), problem)

    def convert_to(self, shape: type[Shape]) -> Shape:
        """The values in a strict shape, or what does not fit and where."""
        if not isinstance(self.content, dict):
            raise MatrixFileError(self.path, 1, "it is empty, or no mapping of keys to values")
        try:
            return msgspec.convert(self.content, shape, strict=False)
        except msgspec.ValidationError as error:
            problem, steps = self._locate_error(str(error), shape)
            unknown = re.search(r"unknown field `([^`]*)`", problem)
            at = "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in steps).lstrip(".")
            problem = problem.replace("Object contains unknown field", "unknown key").replace(
                "Object missing required field", "missing key"
            )
            said = f"{at}: {problem}" if at else problem
            raise self.make_error_at(said, *steps, *([unknown[1]] if unknown else [])) from error

    def _locate_error(self, message: str, shape: type[Shape]) -> tuple[str, list[str | int]]:
        """A message of msgspec's without its end, which says where; it leaves keys out."""
        problem, _, where = re.sub(r" - at `key` in `\$", " - at `$", message).partition(" - at `$")
        steps: list[str | int] = []
        for name, index, _ in PATH_STEP.findall(where.removesuffix("`")):
            if name or index:
                steps.append(name or int(index))
                continue
            key = self._find_key_with_error(message, steps, shape)
            if key is None:
                break
            steps.append(key)
        return problem, steps

    def _find_key_with_error(
        self, message: str, steps: list[str | int], shape: type[Shape]
    ) -> str | None:
        """The key of a mapping without whose neighbours the message is still the same."""
        whole: Any = copy.deepcopy(self.content)
        mapping = whole
        for step in steps:
            mapping = mapping[step]
        for key, value in dict(mapping).items():
            mapping.clear()
            mapping[key] = value
            try:
                msgspec.convert(whole, shape, strict=False)
            except msgspec.ValidationError as error:
                if str(error) == message:
                    return str(key)
        return None
