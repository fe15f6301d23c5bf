"""Structural code patterns (ast-grep): one side of an edit, matched in source and rendered into it.

A pattern is one expression, one statement, or a run of statements. ast-grep matches single syntax
nodes, so a run is matched as neighbouring siblings that agree on their metavariables.

Invariant: a match covers all tokens of its node except comments and redundant commas. Example:
`f($A)` matches `f(x)`, with `$A` = `x`. ast-grep would also match the pattern `if $C: $$$B` in
`if c: b` followed by an `else`; the tokens differ, so this is no match here.
"""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import ast_grep_py
from ast_grep_py import SgNode, SgRoot

from harness.core.errors import UnfixError

# Identifies the installed ast-grep; the package has no version attribute.
AST_GREP_STAMP = "{0.st_size} {0.st_mtime_ns}".format(os.stat(ast_grep_py.ast_grep_py.__file__))
METAVARIABLE = re.compile(r"\$\$\$([A-Z_][A-Z0-9_]*)|\$([A-Z_][A-Z0-9_]*)")
ANONYMOUS_METAVARIABLE = re.compile(r"\$\$\$(?![A-Z])|\$_|\$\$\$_")
# ast-grep's replacement for '$', which no Python identifier may contain.
METAVARIABLE_CHARACTER = "µ"
# Replaces a line break inside a string in a binding; no indentation may follow it.
LITERAL_BREAK = "\0"
# A body after its colon on one line; a longer body must go to the next line.
BODY_AFTER_COLON = re.compile(r"^([ \t]*)(.*:)[ \t]*(\$\$\$[A-Z_][A-Z0-9_]*)[ \t]*$", re.MULTILINE)
TRAILING_LIST = re.compile(r",\s*\$\$\$([A-Z_][A-Z0-9_]*)\s*,?(?=\s*[)\]}])")
REDUNDANT_COMMA = re.compile(r"(?<=[(\[{,]),+|,+(?=[)\]}])")


class PatternError(UnfixError):
    """A pattern that is neither an expression nor a statement nor a run of statements."""


@dataclass(frozen=True, slots=True)
class PatternMatch:
    """The span of a match in a text, and the code that each metavariable binds."""

    start: int
    end: int
    bindings: dict[str, str]


def to_parsable_code(pattern: str) -> str:
    """Convert the pattern to Python that parses, with metavariables as plain names."""
    return pattern.replace("$", METAVARIABLE_CHARACTER)


def find_metavariables(pattern: str) -> set[str]:
    return {many or single for many, single in METAVARIABLE.findall(pattern)}


@dataclass(frozen=True)
class CodePattern:
    """A parsed pattern: finds its matches, and renders itself with the bindings of a match."""

    text: str

    @cached_property
    def statements(self) -> tuple[str, ...]:
        code = to_parsable_code(self.text)
        root = SgRoot(code, "python").root()
        without_body = any(not block.text() for block in root.find_all(kind="block"))
        if root.find(kind="ERROR") or without_body:
            raise PatternError(f"this pattern is not Python: {self.text.strip()!r}")
        nodes = [node for node in root.children() if node.kind() != "comment"]
        if not nodes:
            raise PatternError(f"this pattern holds no code: {self.text.strip()!r}")
        parts = tuple(node.text().replace(METAVARIABLE_CHARACTER, "$") for node in nodes)
        if len(parts) > 1 and any(METAVARIABLE.fullmatch(part) for part in parts):
            raise PatternError("a statement of a run cannot be a bare metavariable")
        return parts

    def find(self, scope: SgNode, text: str) -> list[PatternMatch]:
        """Find every match in `scope`; `text` is the source of the module."""
        matches: dict[tuple[int, int], PatternMatch] = {}
        for nodes, bindings in self._find_statement_runs(scope, text):
            start, end = get_span(nodes[0])[0], get_span(nodes[-1])[1]
            matches.setdefault((start, end), PatternMatch(start, end, bindings))
        return list(matches.values())

    def _find_statement_runs(
        self, scope: SgNode, text: str
    ) -> Iterator[tuple[list[SgNode], dict[str, str]]]:
        first, *others = self.statements
        for node, bindings in iterate_matches(scope, first, text):
            if not others:
                yield [node], bindings
                continue
            current = find_whole_statement(node)
            run = [current] if current else []
            for pattern in others:
                current = find_next_statement(current) if current else None
                more = match_whole_node(current, pattern, text) if current else None
                if current is None or more is None:
                    break
                if not all(is_same_code(bindings.get(name, v), v) for name, v in more.items()):
                    break
                bindings.update(more)
                run.append(current)
            else:
                if run:
                    yield run, bindings

    def render(self, match: PatternMatch, text: str) -> str:
        """Render the pattern's code with the bindings of a match, indented like the match."""
        form = BODY_AFTER_COLON.sub(r"\1\2\n\1    \3", textwrap.dedent(self.text))
        return render_form(form, match, text).replace(LITERAL_BREAK, "\n")

    @staticmethod
    def is_same_code(first: str, second: str) -> bool:
        """Return whether two pieces of code differ only in white space and comments."""
        return is_same_code(first, second)


def iterate_matches(
    scope: SgNode, pattern: str, text: str
) -> Iterator[tuple[SgNode, dict[str, str]]]:
    """Yield the matches of one statement or expression, each with its bindings.

    Corrects ast-grep twice: a trailing `$$$LIST` may be empty, and a pattern may not omit the end
    of the code (an `else`, an assertion's message, the `async` of a function).
    """
    for shape in dict.fromkeys([pattern, TRAILING_LIST.sub("", pattern)]):
        for node in scope.find_all(pattern=shape):
            if expand_pattern_tokens(shape, node) == join_tokens(iterate_tokens(node)):
                found = read_bindings(shape, node, text)
                yield node, dict.fromkeys(find_metavariables(pattern), "") | found


def read_bindings(pattern: str, node: SgNode, text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, nodes in find_bound_nodes(pattern, node).items():
        start, end = (get_span(nodes[0])[0], get_span(nodes[-1])[1]) if nodes else (0, 0)
        code = text[start:end]
        for outer in nodes:
            for string in outer.find_all(kind="string"):
                first, last = (place - start for place in get_span(string))
                code = code[:first] + code[first:last].replace("\n", LITERAL_BREAK) + code[last:]
        found[name] = remove_indent(code, get_indent(text, start))
    return found


def find_bound_nodes(pattern: str, node: SgNode) -> dict[str, list[SgNode]]:
    """Find the nodes that each metavariable binds, without a comment or comma at a list's end."""
    found = {}
    for many, single in METAVARIABLE.findall(pattern):
        nodes = node.get_multiple_matches(many) if many else [node[single]]
        while many and nodes and nodes[-1].kind() in ("comment", ","):
            if is_significant_ending(nodes[-1]):
                break
            nodes.pop()
        found[many or single] = nodes
    return found


def is_significant_ending(node: SgNode) -> bool:
    """Return whether an ending comment or comma counts: in a body, and in the tuple of `x[a,]`."""
    parent = node.parent()
    return parent is not None and parent.kind() in ("block", "module", "subscript")


def expand_pattern_tokens(pattern: str, node: SgNode) -> str:
    """Return the pattern's tokens, with each metavariable replaced by the code it binds."""
    code = {
        name: join_tokens(t for n in nodes for t in iterate_tokens(n))
        for name, nodes in find_bound_nodes(pattern, node).items()
    }
    return join_tokens(
        code.get(leaf.lstrip(METAVARIABLE_CHARACTER), leaf)
        if leaf.startswith(METAVARIABLE_CHARACTER)
        else leaf
        for leaf in parse_pattern_tokens(pattern)
    )


@lru_cache(maxsize=1024)
def parse_pattern_tokens(pattern: str) -> tuple[str, ...]:
    return tuple(iterate_tokens(SgRoot(to_parsable_code(pattern), "python").root()))


def iterate_tokens(node: SgNode) -> Iterator[str]:
    """Yield the tokens of a node without its comments."""
    kind = node.kind()
    if kind in ("comment", "line_continuation"):
        return
    if node.is_leaf() or kind == "string_content":
        yield node.text()
        return
    for child in node.children():
        yield from iterate_tokens(child)


def join_tokens(tokens: Iterable[str]) -> str:
    return REDUNDANT_COMMA.sub("", "".join(tokens))


def render_form(form: str, match: PatternMatch, text: str) -> str:
    """Write a form with the bindings of a match, indented like the match in its text."""
    indent = get_indent(text, match.start)
    written = []
    for number, line in enumerate(form.strip("\n").split("\n")):
        inner = line[: len(line) - len(line.lstrip())]
        filled = substitute_metavariables(line, match.bindings, indent + inner)
        written.append(filled if number == 0 or not line.strip() else indent + filled)
    return "\n".join(written)


def substitute_metavariables(line: str, bindings: dict[str, str], indent: str) -> str:
    """Replace the metavariables in one line of a pattern by the code that they bind."""
    for name in find_metavariables(line):
        if not bindings.get(name, "") and f"$$${name}" in line:
            line = re.sub(rf",\s*\$\$\${name}\b|\$\$\${name}\b\s*,?\s*", "", line)

    def get_binding(match: re.Match[str]) -> str:
        first, *rest = bindings[match[1] or match[2]].split("\n")
        return "\n".join([first, *(indent + part if part.strip() else part for part in rest)])

    return METAVARIABLE.sub(get_binding, line)


def get_indent(text: str, position: int) -> str:
    """Return the white space that begins the line of a position."""
    line = text[text.rfind("\n", 0, position) + 1 :].split("\n", 1)[0]
    return line[: len(line) - len(line.lstrip())]


def remove_indent(code: str, indent: str) -> str:
    """Remove an indent from all lines of a piece of code but the first."""
    return "\n".join(line.removeprefix(indent) for line in code.split("\n"))


def is_same_code(first: str, second: str) -> bool:
    """Return whether two pieces of code differ only in white space and comments."""
    first, second = (code.replace(LITERAL_BREAK, "\n") for code in (first, second))
    return first == second or parse_pattern_tokens(first) == parse_pattern_tokens(second)


def remove_whitespace(code: str) -> str:
    return re.sub(r"\s+", "", code)


def get_span(node: SgNode) -> tuple[int, int]:
    where = node.range()
    return where.start.index, where.end.index


def find_whole_statement(node: SgNode) -> SgNode | None:
    """Return the statement that `node` is; None for a part of a statement."""
    current: SgNode | None = node
    while current is not None:
        parent = current.parent()
        if parent is None or get_span(current) != get_span(node):
            return None
        if parent.kind() in ("block", "module"):
            return current
        current = parent
    return None


def find_next_statement(node: SgNode) -> SgNode | None:
    following = node.next()
    while following is not None and following.kind() == "comment":
        following = following.next()
    return following


def match_whole_node(node: SgNode, pattern: str, text: str) -> dict[str, str] | None:
    """Return the bindings of a match that covers the whole of `node`, if there is one."""
    for found, names in iterate_matches(node, pattern, text):
        if get_span(found) == get_span(node):
            return names
    return None
