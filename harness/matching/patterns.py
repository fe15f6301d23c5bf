"""A form of a fix as structural patterns (ast-grep), found in source and written back into it.

A form is one expression, one statement, or a run of statements. ast-grep matches single syntax
nodes, so a run is matched as neighbouring siblings that agree on their metavariables.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from ast_grep_py import SgNode, SgRoot

from harness.errors import UnfixError

METAVARIABLE = re.compile(r"\$\$\$([A-Z_][A-Z0-9_]*)|\$([A-Z_][A-Z0-9_]*)")
ANONYMOUS = re.compile(r"\$\$\$(?![A-Z])|\$_|\$\$\$_")
# What ast-grep itself puts in the place of '$', which no Python identifier may hold.
STAND_IN = "µ"


class PatternError(UnfixError):
    """A pattern that is not one expression, one statement or a run of statements."""


@dataclass(frozen=True, slots=True)
class Match:
    """Where a form stands in a text, and what its metavariables stand for."""

    start: int
    end: int
    bindings: dict[str, str]


def as_code(pattern: str) -> str:
    """The pattern as Python that parses, its metavariables turned into plain names."""
    return pattern.replace("$", STAND_IN)


def metavariables(pattern: str) -> set[str]:
    return {many or one for many, one in METAVARIABLE.findall(pattern)}


@dataclass(frozen=True)
class Form:
    """One side of an edit, ready to be looked for and to be written."""

    text: str

    @cached_property
    def statements(self) -> tuple[str, ...]:
        code = as_code(self.text)
        root = SgRoot(code, "python").root()
        if root.find(kind="ERROR"):
            raise PatternError(f"this pattern is not Python: {self.text.strip()!r}")
        nodes = [node for node in root.children() if node.kind() != "comment"]
        if not nodes:
            raise PatternError(f"this pattern holds no code: {self.text.strip()!r}")
        parts = tuple(node.text().replace(STAND_IN, "$") for node in nodes)
        if len(parts) > 1 and any(METAVARIABLE.fullmatch(part) for part in parts):
            raise PatternError("a statement of a run cannot be a bare metavariable")
        return parts

    def find(self, scope: SgNode, text: str) -> list[Match]:
        """Every place in `scope` that has this form; `text` is the source that holds it."""
        found: dict[tuple[int, int], Match] = {}
        for nodes, bindings in self._runs(scope, text):
            start, end = span(nodes[0])[0], span(nodes[-1])[1]
            found.setdefault((start, end), Match(start, end, bindings))
        return list(found.values())

    def _runs(self, scope: SgNode, text: str) -> Iterator[tuple[list[SgNode], dict[str, str]]]:
        first, *others = self.statements
        for node in scope.find_all(pattern=first):
            bindings = self._bindings(first, node, text)
            if not others:
                yield [node], bindings
                continue
            current = whole_statement(node)
            run = [current] if current else []
            for pattern in others:
                current = next_statement(current) if current else None
                matched = match_exactly(current, pattern) if current else None
                if current is None or matched is None:
                    break
                more = self._bindings(pattern, matched, text)
                if any(squeeze(bindings.get(k, v)) != squeeze(v) for k, v in more.items()):
                    break
                bindings.update(more)
                run.append(current)
            else:
                if run:
                    yield run, bindings

    def _bindings(self, pattern: str, node: SgNode, text: str) -> dict[str, str]:
        bindings: dict[str, str] = {}
        for many, one in METAVARIABLE.findall(pattern):
            nodes = node.get_multiple_matches(many) if many else [node[one]]
            start, end = (span(nodes[0])[0], span(nodes[-1])[1]) if nodes else (0, 0)
            bindings[many or one] = unindent(text[start:end], indent_at(text, start))
        return bindings

    def write(self, match: Match, text: str) -> str:
        """This form with the bindings of a match, indented for the place where the match stands."""
        indent = indent_at(text, match.start)
        written: list[str] = []
        for number, line in enumerate(textwrap.dedent(self.text).strip("\n").split("\n")):
            inner = line[: len(line) - len(line.lstrip())]
            filled = fill(line, match.bindings, indent + inner)
            written.append(filled if number == 0 or not line.strip() else indent + filled)
        return "\n".join(written)


def fill(line: str, bindings: dict[str, str], indent: str) -> str:
    """One line of a pattern with its metavariables replaced by the code they stand for."""
    for name in metavariables(line):
        if not bindings.get(name, "") and f"$$${name}" in line:
            line = re.sub(rf",\s*\$\$\${name}\b|\$\$\${name}\b\s*,?\s*", "", line)

    def put(found: re.Match[str]) -> str:
        first, *rest = bindings[found[1] or found[2]].split("\n")
        return "\n".join([first, *(indent + part if part.strip() else part for part in rest)])

    return METAVARIABLE.sub(put, line)


def indent_at(text: str, position: int) -> str:
    """The white space that begins the line of a position."""
    line = text[text.rfind("\n", 0, position) + 1 :].split("\n", 1)[0]
    return line[: len(line) - len(line.lstrip())]


def unindent(code: str, indent: str) -> str:
    """Code taken out of its place: the lines after its first, without that place's indent."""
    return "\n".join(line.removeprefix(indent) for line in code.split("\n"))


def squeeze(code: str) -> str:
    return re.sub(r"\s+", "", code)


def span(node: SgNode) -> tuple[int, int]:
    where = node.range()
    return where.start.index, where.end.index


def whole_statement(node: SgNode) -> SgNode | None:
    """The statement that `node` is, if it is one; None for a part of a statement."""
    here: SgNode | None = node
    while here is not None:
        parent = here.parent()
        if parent is None or span(here) != span(node):
            return None
        if parent.kind() in ("block", "module"):
            return here
        here = parent
    return None


def next_statement(node: SgNode) -> SgNode | None:
    following = node.next()
    while following is not None and following.kind() == "comment":
        following = following.next()
    return following


def match_exactly(node: SgNode, pattern: str) -> SgNode | None:
    """The match of a pattern that covers the whole of `node`, if there is one."""
    for found in node.find_all(pattern=pattern):
        if span(found) == span(node):
            return found
    return None
