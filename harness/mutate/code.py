"""A function as operators see it: its syntax tree, the places of its nodes, what is left alone.

Python's own `ast` and not ast-grep: what is asked here is about meaning (which name is a length,
which call allocates), and the text that comes out has to compile anyway.
"""

from __future__ import annotations

import ast
import bisect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from harness.syntax.scopes import ModuleSource

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
HEADS = ("body", "orelse", "finalbody", "handlers", "cases")
# Calls that tell, check or hint, and compute nothing.
TELLING = re.compile(
    r"^(logger\.|logging\.|warnings\.|print$|tl\.static_|tl\.device_|torch\._check|nvtx\.)"
    r"|^(tl\.debug_barrier|tl\.max_contiguous|log_\w+)$|(^|[._])assert_|(^|\.)maybe_detect_"
)
UNSPOKEN = ("__repr__", "__str__", "__format__")
LOOSE = (ast.BinOp, ast.BoolOp, ast.Compare, ast.UnaryOp, ast.IfExp, ast.Lambda, ast.NamedExpr)
TIGHT = (ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.Attribute, ast.Await, ast.Starred)


@dataclass(frozen=True, slots=True)
class Change:
    """`text[start:end]` becomes `after`; `words` say what that means."""

    start: int
    end: int
    after: str
    words: str


class ModuleCode:
    """One module's text, parsed once, with its outermost functions by qualified name."""

    def __init__(self, source: ModuleSource) -> None:
        self.source = source
        self.text = source.text
        self.tree = ast.parse(source.text)
        self._starts = [0]
        for line in source.text.split("\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)

    @cached_property
    def functions(self) -> list[FunctionCode]:
        return [FunctionCode(self, name, node) for name, node in outermost(self.tree.body)]

    def offset(self, line: int, column: int) -> int:
        """Characters from a line and the UTF-8 bytes that `ast` counts columns in."""
        start = self._starts[line - 1]
        text = self.text[start : start + column]
        return start + (column if text.isascii() else len(text.encode()[:column].decode()))

    def line(self, offset: int) -> int:
        """The line of a place in the text, from 1."""
        return bisect.bisect_right(self._starts, offset)

    def span(self, node: ast.expr | ast.stmt | ast.keyword | ast.arg) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self.offset(node.lineno, node.col_offset),
            self.offset(node.end_lineno, node.end_col_offset),
        )


def outermost(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, FunctionNode]]:
    """The functions of a module and of its classes, through `if` and `try`, not inside others."""
    for node in body:
        if isinstance(node, FUNCTIONS):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from outermost(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.If | ast.Try | ast.With):
            for child in ast.iter_child_nodes(node):
                inner = child.body if isinstance(child, ast.ExceptHandler) else [child]
                yield from outermost([n for n in inner if isinstance(n, ast.stmt)], prefix)


class FunctionCode:
    """One outermost function: its nodes in the order of the text, and how they hang together."""

    def __init__(self, module: ModuleCode, qualname: str, node: FunctionNode) -> None:
        self.module = module
        self.qualname = qualname
        self.node = node
        self.kernel = any(is_jit(decorator) for decorator in node.decorator_list)

    @cached_property
    def statements(self) -> list[ast.stmt]:
        """Every statement of the body, in the order of the text."""
        return list(statements(self.node.body))

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """What a fault may change: no annotation, check, message, log line or docstring."""
        if self.node.name in UNSPOKEN:
            return []
        return [node for statement in self.node.body for node in live(statement)]

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        return {child: node for node in ast.walk(self.node) for child in ast.iter_child_nodes(node)}

    @cached_property
    def parameters(self) -> set[str]:
        return {node.arg for node in ast.walk(self.node) if isinstance(node, ast.arg)}

    @cached_property
    def assigned(self) -> dict[str, list[ast.expr]]:
        """The values that each local name is given by a plain assignment."""
        found: dict[str, list[ast.expr]] = {}
        for node in ast.walk(self.node):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                found.setdefault(node.targets[0].id, []).append(node.value)
        return found

    def of(self, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
        return (node for node in self.nodes if isinstance(node, kinds))

    def calls(self, name: str) -> Iterator[ast.Call]:
        """The calls of what is called like that; a pattern for the whole dotted name."""
        for node in self.nodes:
            if isinstance(node, ast.Call) and re.search(name, dotted(node.func)):
                yield node

    def parent(self, node: ast.AST) -> ast.AST | None:
        return self.parents.get(node)

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """Whatever a node stands in, from the inside out, up to its statement."""
        while not isinstance(node, ast.stmt) and (outer := self.parents.get(node)) is not None:
            yield outer
            node = outer

    def statement(self, node: ast.AST) -> ast.stmt:
        return next(n for n in (node, *self.above(node)) if isinstance(n, ast.stmt))

    def span(self, node: ast.expr | ast.stmt | ast.keyword) -> tuple[int, int]:
        return self.module.span(node)

    def code(self, node: ast.expr | ast.stmt | ast.keyword) -> str:
        start, end = self.span(node)
        return self.module.text[start:end]

    def replaced(self, node: ast.expr | ast.stmt, after: str, words: str) -> Change:
        """A node replaced by other code, in brackets where the place binds tighter."""
        start, end = self.span(node)
        new = expression(after) if isinstance(node, ast.expr) else None
        if new is not None and "\n" in after:
            after = ast.unparse(new)
        if new is not None and isinstance(node, ast.expr) and self._wants_brackets(node, new):
            after = f"({after})"
        return Change(start, end, after, words)

    def _wants_brackets(self, node: ast.expr, new: ast.expr) -> bool:
        outer = self.parents[node]
        tight = (
            isinstance(outer, TIGHT)
            or (isinstance(outer, ast.Call) and outer.func is node)
            or (isinstance(outer, ast.Subscript) and outer.value is node)
        )
        if not tight or not isinstance(new, LOOSE):
            return False
        if isinstance(outer, ast.Compare | ast.BoolOp) and isinstance(new, ast.BinOp):
            return False
        if isinstance(outer, ast.BinOp) and not isinstance(outer.op, ast.Pow):
            if isinstance(new, ast.UnaryOp) and not isinstance(new.op, ast.Not):
                return False
            if outer.left is node and isinstance(new, ast.BinOp) and rank(new) >= rank(outer):
                return False
        start, end = self.span(node)
        before, behind = self.module.text[:start].rstrip(), self.module.text[end:].lstrip()
        return not (before.endswith("(") and behind.startswith(")"))

    def exchanged(self, one: ast.expr, other: ast.expr, words: str) -> Change:
        """Two expressions of one line of code in each other's place."""
        (start, middle), (again, end) = self.span(one), self.span(other)
        text = self.module.text
        return Change(start, end, text[again:end] + text[middle:again] + text[start:middle], words)

    def without(self, items: list[ast.expr | ast.keyword], gone: set[int], words: str) -> Change:
        """A list of arguments or operands without some that stand side by side."""
        first, last = min(gone), max(gone)
        if first:
            start, end = self.span(items[first - 1])[1], self.span(items[last])[1]
        else:
            start, end = self.span(items[0])[0], self.span(items[last + 1])[0]
        return Change(start, end, "", words)


def rank(node: ast.BinOp) -> int:
    """How tight an operation binds, of those that are written here."""
    if isinstance(node.op, ast.Add | ast.Sub):
        return 1
    return 2 if isinstance(node.op, ast.Mult | ast.Div | ast.FloorDiv | ast.Mod) else 0


def expression(code: str) -> ast.expr | None:
    """Code as an expression, if it is one; what is none does not compile either, and is dropped."""
    try:
        return ast.parse(f"({code})", mode="eval").body
    except SyntaxError:
        return None


def is_jit(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return dotted(called) in ("triton.jit", "jit", "tl.jit")


def dotted(node: ast.AST) -> str:
    """`a.b.c` of a chain of names; what hangs on anything else keeps its last part: `.b.c`."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id if isinstance(node, ast.Name) else "", *reversed(parts)])


def last_name(node: ast.AST) -> str:
    """What a plain value is called: `topk` of `self.topk`; '' of anything else."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        for field in HEADS:
            for child in getattr(node, field, []):
                yield from statements([child] if isinstance(child, ast.stmt) else child.body)


def header(statement: ast.stmt) -> Iterator[ast.AST]:
    """What a statement holds itself: of a compound one its header alone."""
    for field, value in ast.iter_fields(statement):
        if field not in HEADS:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield child


def live(node: ast.AST) -> Iterator[ast.AST]:
    """A node and what is in it, without what no fault is worth."""
    if is_idle(node):
        return
    yield node
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "args") and isinstance(
            node, (*FUNCTIONS, ast.AnnAssign, ast.arg, ast.Lambda)
        ):
            continue
        if field == "test" and isinstance(node, ast.If) and only_raises(node):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from live(child)


def is_idle(node: ast.AST) -> bool:
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.ClassDef | ast.Import):
        return True
    if isinstance(node, ast.ImportFrom | ast.Global | ast.Nonlocal):
        return True
    if isinstance(node, FUNCTIONS) and node.name in UNSPOKEN:
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    return isinstance(node, ast.Call) and TELLING.search(dotted(node.func)) is not None


def only_raises(node: ast.If) -> bool:
    return not node.orelse and isinstance(node.body[-1], ast.Raise)
