"""Which source lines each kernel of a module has, inlined functions included: `.loc` in its PTX."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import cached_property

_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]+)"', re.MULTILINE)
_MARK = re.compile(
    r"\.(?:entry|func)\s+(?:\([^)]*\)\s*)?([\w$]+)|^\s*\.loc\s+(\d+)\s+(\d+)", re.MULTILINE
)


class KernelLines:
    """The lines of a module's kernels by file; read when a patched module asks for the first."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = tuple(texts)

    @cached_property
    def _lines(self) -> dict[str, set[tuple[str, int]]]:
        """The (file, line) pairs of each kernel; those of functions that it calls are under ''."""
        lines: dict[str, set[tuple[str, int]]] = defaultdict(set)
        for text in self._texts:
            files = dict(_FILE.findall(text))
            name = ""
            for match in _MARK.finditer(text):
                if match[1]:
                    name = match[1] if match[0].startswith(".entry") else ""
                elif match[2] in files:
                    lines[name].add((files[match[2]], int(match[3])))
        return lines

    def make_question(self, entry: str) -> Callable[[str, int], bool | None]:
        """Return a function that says whether a kernel has a line of a source.

        It returns None for a line that no kernel of the module has.
        """

        def has_line(path: str, line: int) -> bool | None:
            having = {
                name
                for name, lines in self._lines.items()
                if any(number == line and file.endswith(f"/{path}") for file, number in lines)
            }
            return None if not having else bool({entry, ""} & having)

        return has_line
