"""A YAML file as strings, lists and mappings, read into a strict schema; errors name the line.

The file is read without YAML's guesses: `on` stays "on", `1.10` stays "1.10", and a key may be
`16`. The schema (msgspec structs) converts what it declares as a number or a boolean.

    axes:                    # YamlDocument(path).convert_to(MatrixFile), where `axis` is unknown:
      page: [1, 16]          #   matrix.yaml:1: unknown key `axis`
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

from harness.core import paths
from harness.core.errors import UnfixError
from harness.core.located_yaml import LocatedYaml


class YamlDocument(LocatedYaml):
    """A YAML file read without YAML's guesses; its schema says what is a number."""

    is_strict = False


def find_named_file(name: str, folder: str, noun: str) -> Path:
    """Find a file by its path, or one of the project's own by folder and name without `.yaml`."""
    own_folder = paths.project_folder() / folder
    own_file = own_folder / f"{name}.yaml"
    path = Path(name)
    if len(path.parts) > 1 or path.suffix or path.is_file():
        return path
    if own_file.is_file():
        return own_file
    known = ", ".join(sorted(file.stem for file in own_folder.glob("*.yaml")))
    raise UnfixError(f"no {noun} is called {name}; there are {known}")


def suggest_nearest(word: str, known: Iterable[str]) -> str:
    """Name the known word nearest to an unknown one, or all of them: an error message's end."""
    names = list(known)
    close = difflib.get_close_matches(word, names, 1, 0.5)
    return f"; did you mean {close[0]}?" if close else f"; there are {', '.join(names)}"
