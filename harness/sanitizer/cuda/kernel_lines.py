"""Which source lines each kernel of a module has, inlined functions included: `.loc` in its PTX."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]+)"', re.MULTILINE)
_MARK = re.compile(
    r"\.(?:entry|func)\s+(?:\([^)]*\)\s*)?([\w$]+)|^\s*\.loc\s+(\d+)\s+(\d+)", re.MULTILINE
)
# A kernel, or a line of its own: that of an inlined function goes on with where it is inlined.
_OWN_LINE = re.compile(r"\.entry\s+([\w$]+)|^\s*\.loc\s+(\d+)\s+\d+\s+\d+\s*$", re.MULTILINE)


def remove_places(text: str) -> str:
    """Return a PTX text without its places in sources: the code that two texts can share.

    Comments and white space go, too: a fatbin has no more of them than it needs. Files and the
    names of inlined functions stand behind the last kernel.
    """
    end = _FILE.search(text)
    code = text[: end.start()] if end else text
    lines = (" ".join(line.partition("//")[0].split()) for line in code.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith(".loc "))


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

    @cached_property
    def files(self) -> dict[str, str]:
        """The file that each kernel stands in."""
        found: dict[str, str] = {}
        for text in self._texts:
            files = dict(_FILE.findall(text))
            name = ""
            for match in _OWN_LINE.finditer(text):
                name = match[1] or name
                if match[2] in files:
                    found.setdefault(name, files[match[2]])
        return found

    def select(self, entry: str) -> EntryLines:
        return EntryLines(self, entry)

    def list_lines(self, entry: str) -> set[tuple[str, int]]:
        """Return the (file, line) pairs of a kernel, and of the functions that it may call."""
        return self._lines.get(entry, set()) | self._lines.get("", set())

    def find_kernels(self, path: str, line: int) -> set[str]:
        """Find the kernels that have a line of a source, whose path ends like this."""
        return {
            name
            for name, lines in self._lines.items()
            if any(number == line and file.endswith(f"/{path}") for file, number in lines)
        }


@dataclass(frozen=True, slots=True)
class EntryLines:
    """The lines of one kernel of a module."""

    module: KernelLines
    entry: str

    def has_line(self, path: str, line: int) -> bool | None:
        """Return whether the kernel has a line; None for one that no kernel of the module has."""
        having = self.module.find_kernels(path, line)
        return None if not having else bool({self.entry, ""} & having)

    def list_lines(self) -> set[tuple[str, int]]:
        return self.module.list_lines(self.entry)
