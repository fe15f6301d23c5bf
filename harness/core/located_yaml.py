"""YAML files with the line of each value, so that errors name the file and the line.

axes: [1]
axes: [2]        # matrix.yaml:2: the key 'axes' stands twice
"""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec
import yaml
from yaml.reader import ReaderError

from harness.core.errors import UnfixError

PATH_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|(\[\.\.\.\])")
Schema = TypeVar("Schema")


class YamlFileError(UnfixError):
    """A file that does not fit its schema; the message begins with the file and the line."""

    def __init__(self, path: str, line: int, problem: str) -> None:
        super().__init__(f"{path}:{line}: {problem}")
        self.path = path
        self.line = line
        self.problem = problem


class LocatedYaml:
    """The plain values of a YAML file, and the line of each; a subclass chooses the loader."""

    loader_class: ClassVar[Any] = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    format_name: ClassVar[str] = "YAML"
    is_strict: ClassVar[bool] = True  # whether a word that reads as a number is none

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._root: Any = None
        try:
            text = path.read_text(encoding="utf-8")
            self._loader = self.loader_class(text)
            self.values = self._load_values()
        except OSError as error:
            raise UnfixError(f"{path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            raise self.make_error(line, f"not UTF-8: {error.reason}") from error
        except ReaderError as error:
            line = text.partition(chr(error.character))[0].count("\n") + 1
            problem = f"character #x{error.character:04x}: {error.reason}"
            raise self.make_error(line, f"not {self.format_name}: {problem}") from error
        except yaml.YAMLError as error:
            marked = error if isinstance(error, yaml.MarkedYAMLError) else None
            line = marked.problem_mark.line + 1 if marked and marked.problem_mark else 1
            reason = marked.problem if marked else error
            raise self.make_error(line, f"not {self.format_name}: {reason}") from error

    def _load_values(self) -> Any:
        """Check the nodes, then construct the plain values."""
        try:
            self._root = self._loader.get_single_node()
            self._check_nodes(self._root, set())
            return self._loader.construct_document(self._root) if self._root else None
        finally:
            self._loader.dispose()

    def make_error(self, line: int, problem: str) -> YamlFileError:
        return YamlFileError(self.path, line, problem)

    def make_error_at(self, problem: str, *steps: str | int) -> YamlFileError:
        return self.make_error(self.find_line(*steps), problem)

    def convert_to(self, schema: type[Schema]) -> Schema:
        """Convert the values to a strict schema; raise for the first value that does not fit."""
        if not isinstance(self.values, dict):
            raise self.make_error(1, "it is empty, or no mapping of keys to values")
        try:
            return msgspec.convert(self.values, schema, strict=self.is_strict)
        except msgspec.ValidationError as error:
            problem, steps = self._locate_error(str(error), schema)
            unknown = re.search(r"unknown field `([^`]*)`", problem)
            at = "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in steps).lstrip(".")
            problem = problem.replace("Object contains unknown field", "unknown key").replace(
                "Object missing required field", "missing key"
            )
            problem = self.explain_problem(at, problem)
            text = f"{at}: {problem}" if at else problem
            raise self.make_error_at(text, *steps, *([unknown[1]] if unknown else [])) from error

    def _locate_error(self, message: str, schema: type[Schema]) -> tuple[str, list[str | int]]:
        """Split a msgspec message into the problem and the steps to its value.

        msgspec writes `$.axes[...].x` for a key of a mapping; the key is searched for.
        """
        problem, _, path = re.sub(r" - at `key` in `\$", " - at `$", message).partition(" - at `$")
        steps: list[str | int] = []
        for name, index, _ in PATH_STEP.findall(path.removesuffix("`")):
            if name or index:
                steps.append(name or int(index))
                continue
            key = self._find_key_with_error(message, steps, schema)
            if key is None:
                break
            steps.append(key)
        return problem, steps

    def _find_key_with_error(
        self, message: str, steps: list[str | int], schema: type[Schema]
    ) -> str | None:
        """Find the key that alone in its mapping causes the same message."""
        content: Any = copy.deepcopy(self.values)
        mapping = content
        for step in steps:
            mapping = mapping[step]
        for key, value in dict(mapping).items():
            mapping.clear()
            mapping[key] = value
            try:
                msgspec.convert(content, schema, strict=self.is_strict)
            except msgspec.ValidationError as error:
                if str(error) == message:
                    return str(key)
        return None

    def explain_problem(self, path: str, problem: str) -> str:
        """Explain what is wrong with the value at a path; a subclass knows its schema."""
        return problem

    def is_valid_key(self, key: Any) -> bool:
        return isinstance(key, yaml.ScalarNode)

    def check_scalar(self, node: Any) -> None:
        """Raise for a scalar that has no value; the base loader accepts every scalar."""

    def _check_nodes(self, node: Any, visited: set[int]) -> None:
        """Raise for a repeated key, a key that is not a word, a bad scalar; aliases once."""
        if id(node) in visited:
            return
        visited.add(id(node))
        if isinstance(node, yaml.ScalarNode):
            self.check_scalar(node)
        if isinstance(node, yaml.SequenceNode):
            for item in node.value:
                self._check_nodes(item, visited)
        if isinstance(node, yaml.MappingNode):
            keys: set[str] = set()
            for key, value in node.value:
                line = key.start_mark.line + 1
                if not self.is_valid_key(key):
                    raise self.make_error(line, "a key is a word")
                if key.value in keys:
                    raise self.make_error(line, f"the key '{key.value}' stands twice")
                keys.add(key.value)
                self._check_nodes(value, visited)

    def find_line(self, *path: str | int) -> int:
        """Find the line of a value, or of the innermost existing value around it."""
        node = self._root
        line: int = node.start_mark.line + 1 if node else 1
        for step in path:
            inner = None
            if isinstance(node, yaml.MappingNode):
                for key, value in node.value:
                    if key.value == step:
                        line, inner = key.start_mark.line + 1, value
            elif isinstance(node, yaml.SequenceNode) and isinstance(step, int):
                inner = node.value[step]
                line = inner.start_mark.line + 1
            if inner is None:
                break
            node = inner
        return line


class SafeYamlFile(LocatedYaml):
    """A YAML file with YAML's own types (numbers, dates, null), and no Python objects."""

    loader_class = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    format_name = "safe YAML"

    def is_valid_key(self, key: Any) -> bool:
        return bool(key.tag == "tag:yaml.org,2002:str")

    def check_scalar(self, node: Any) -> None:
        """Raise for an impossible date."""
        try:
            self._loader.construct_object(node)
        except ValueError as error:
            raise self.make_error(node.start_mark.line + 1, f"'{node.value}': {error}") from error
