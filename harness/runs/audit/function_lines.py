"""How often a line stands in a function of some sources, whichever file has the function."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.runs.audit.release_files import iterate_sources


def find_function(lines: Sequence[str], line: int) -> str:
    """Find the name of the innermost function around a line; empty outside of functions."""
    around = [
        node
        for node in _iterate_functions("\n".join(lines))
        if node.lineno <= line <= (node.end_lineno or 0)
    ]
    return max(around, key=lambda node: node.lineno).name if around else ""


def count_lines(lines: Sequence[str], function: str, text: str) -> int:
    """Count the lines with this text in functions of this name; blanks do not count."""
    return sum(
        " ".join(line.split()) == text
        for node in _iterate_functions("\n".join(lines))
        if node.name == function
        for line in lines[node.lineno - 1 : node.end_lineno]
    )


class SourceLines:
    """The sources at a location, read once."""

    def __init__(self, location: Path) -> None:
        self._files = dict(iterate_sources(location))

    def count_lines(self, path: str, function: str, text: str) -> int:
        """Count the lines of a function: in its file, or if it is not there, in any other."""
        start = f"def {function}(".encode()
        files = {name: data for name, data in self._files.items() if start in data}
        if path in files:
            files = {path: files[path]}
        return sum(
            count_lines(data.decode(errors="replace").splitlines(), function, text)
            for data in files.values()
        )


def _iterate_functions(text: str) -> Iterator[ast.FunctionDef]:
    try:
        tree = ast.parse(text)
    except SyntaxError:  # no kernel is in a file that Python cannot read
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield node
