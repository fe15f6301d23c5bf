"""A YAML file as strings, lists and mappings, read into a strict schema; errors name the line.

The file is read without YAML's guesses: `on` stays "on", `1.10` stays "1.10", and a key may be
`16`. The schema (msgspec structs) converts what it declares as a number or a boolean.

    axes:                    # YamlDocument(path).convert_to(MatrixFile), where `axis` is unknown:
      page: [1, 16]          #   matrix.yaml:1: unknown key `axis`
"""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from harness.core import paths
from harness.core.errors import UnfixError
from harness.core.located_yaml import LocatedYaml

PATH_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|(\[\.\.\.\])")
Schema = TypeVar("Schema")


class YamlDocument(LocatedYaml):
    """A YAML file read without YAML's guesses, for a strict schema."""

    def convert_to(self, schema: type[Schema]) -> Schema:
        """Convert the values to a strict schema; raise for the first value that does not fit."""
        if not isinstance(self.values, dict):
            raise self.make_error(1, "it is empty, or no mapping of keys to values")
        try:
            return msgspec.convert(self.values, schema, strict=False)
        except msgspec.ValidationError as error:
            problem, steps = self._locate_error(str(error), schema)
            unknown = re.search(r"unknown field `([^`]*)`", problem)
            at = "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in steps).lstrip(".")
            problem = problem.replace("Object contains unknown field", "unknown key").replace(
                "Object missing required field", "missing key"
            )
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
                msgspec.convert(content, schema, strict=False)
            except msgspec.ValidationError as error:
                if str(error) == message:
                    return str(key)
        return None


def find_named_file(name: str, folder: str, noun: str) -> Path:
    """Find a file by its path, or one of the project's own by folder and name without `.yaml`."""
    own_folder = paths.project_folder() / folder
    own = own_folder / f"{name}.yaml"
    path = Path(name)
    if len(path.parts) > 1 or path.suffix or path.is_file():
        return path
    if own.is_file():
        return own
    known = ", ".join(sorted(file.stem for file in own_folder.glob("*.yaml")))
    raise UnfixError(f"no {noun} is called {name}; there are {known}")


def suggest_nearest(word: str, known: Iterable[str]) -> str:
    """Name the known word nearest to an unknown one, or all of them: an error message's end."""
    names = list(known)
    close = difflib.get_close_matches(word, names, 1, 0.5)
    return f"; did you mean {close[0]}?" if close else f"; there are {', '.join(names)}"
