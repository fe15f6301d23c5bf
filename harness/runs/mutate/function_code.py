"""A function for operators: its syntax tree, and the nodes that a fault may change.

The tree is Python's own `ast` and not ast-grep's, since operators need meaning (which name is a
length, which call allocates), and the changed text has to compile anyway.
"""

from __future__ import annotations

import ast
import bisect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from harness.core.source_scopes import ModuleSource

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
BODY_FIELDS = ("body", "orelse", "finalbody", "handlers", "cases")
# Calls that log, check or hint, and compute nothing.
REPORTING_CALL = re.compile(
    r"^(logger\.|logging\.|warnings\.|print$|tl\.static_|tl\.device_|torch\._check|nvtx\.)"
    r"|^(tl\.debug_barrier|tl\.max_contiguous|log_\w+)$|(^|[._])assert_|(^|\.)maybe_detect_"
)
DISPLAY_METHODS = ("__repr__", "__str__", "__format__")
LOOSELY_BINDING = (
    ast.BinOp,
    ast.BoolOp,
    ast.Compare,
    ast.UnaryOp,
    ast.IfExp,
    ast.Lambda,
    ast.NamedExpr,
)
TIGHTLY_BINDING = (
    ast.BinOp,
    ast.UnaryOp,
    ast.Compare,
    ast.BoolOp,
    ast.Attribute,
    ast.Await,
    ast.Starred,
)


@dataclass(frozen=True, slots=True)
class CodeChange:
    """A change of `text[start:end]` to `replacement`, with a description in words."""

    start: int
    end: int
    replacement: str
    description: str


class ModuleCode:
    """One module's text, parsed once, and its outermost functions by qualified name."""

    def __init__(self, source: ModuleSource) -> None:
        self.source = source
        self.text = source.text
        self.tree = ast.parse(source.text)
        self._line_starts = [0]
        for line in source.text.split("\n"):
            self._line_starts.append(self._line_starts[-1] + len(line) + 1)

    @cached_property
    def functions(self) -> list[FunctionCode]:
        return [
            FunctionCode(self, name, node)
            for name, node in iterate_outermost_functions(self.tree.body)
        ]

    def get_offset(self, line: int, column: int) -> int:
        """Convert a line and a column in UTF-8 bytes, as `ast` has them, to characters."""
        start = self._line_starts[line - 1]
        text = self.text[start : start + column]
        return start + (column if text.isascii() else len(text.encode()[:column].decode()))

    def get_line(self, offset: int) -> int:
        """Return the line of an offset, from 1."""
        return bisect.bisect_right(self._line_starts, offset)

    def get_span(self, node: ast.expr | ast.stmt | ast.keyword | ast.arg) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self.get_offset(node.lineno, node.col_offset),
            self.get_offset(node.end_lineno, node.end_col_offset),
        )


def iterate_outermost_functions(
    body: list[ast.stmt], prefix: str = ""
) -> Iterator[tuple[str, FunctionNode]]:
    """Yield the functions of a module and its classes, also in `if` and `try`, not nested ones."""
    for node in body:
        if isinstance(node, FUNCTIONS):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from iterate_outermost_functions(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.If | ast.Try | ast.With):
            for child in ast.iter_child_nodes(node):
                inner = child.body if isinstance(child, ast.ExceptHandler) else [child]
                yield from iterate_outermost_functions(
                    [n for n in inner if isinstance(n, ast.stmt)], prefix
                )


class FunctionCode:
    """One outermost function, with its nodes in the order of the text, and their parents."""

    def __init__(self, module: ModuleCode, qualname: str, node: FunctionNode) -> None:
        self.module = module
        self.qualname = qualname
        self.node = node
        self.is_kernel = any(is_jit_decorator(decorator) for decorator in node.decorator_list)

    @property
    def lines(self) -> range:
        """The lines of the whole definition, without its decorators."""
        return range(self.node.lineno, (self.node.end_lineno or self.node.lineno) + 1)

    @property
    def body_lines(self) -> range:
        return range(self.node.body[0].lineno, self.lines.stop)

    @cached_property
    def statements(self) -> list[ast.stmt]:
        """Return every statement of the body, in the order of the text."""
        return list(iterate_statements(self.node.body))

    @cached_property
    def mutable_nodes(self) -> list[ast.AST]:
        """Return the nodes that a fault may change: no annotation, check, message or docstring."""
        if self.node.name in DISPLAY_METHODS:
            return []
        return [node for statement in self.node.body for node in iterate_mutable_nodes(statement)]

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        return {child: node for node in ast.walk(self.node) for child in ast.iter_child_nodes(node)}

    @cached_property
    def parameters(self) -> set[str]:
        return {node.arg for node in ast.walk(self.node) if isinstance(node, ast.arg)}

    @cached_property
    def assigned_values(self) -> dict[str, list[ast.expr]]:
        """Return the values of each local name's plain assignments."""
        values: dict[str, list[ast.expr]] = {}
        for node in ast.walk(self.node):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                values.setdefault(node.targets[0].id, []).append(node.value)
        return values

    def find_nodes(self, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
        return (node for node in self.mutable_nodes if isinstance(node, kinds))

    def find_calls(self, name_pattern: str) -> Iterator[ast.Call]:
        """Yield the calls whose dotted name matches."""
        for node in self.mutable_nodes:
            if isinstance(node, ast.Call) and re.search(name_pattern, get_dotted_name(node.func)):
                yield node

    def get_parent(self, node: ast.AST) -> ast.AST | None:
        return self.parents.get(node)

    def get_span(self, node: ast.expr | ast.stmt | ast.keyword) -> tuple[int, int]:
        return self.module.get_span(node)

    def get_text(self, node: ast.expr | ast.stmt | ast.keyword) -> str:
        start, end = self.get_span(node)
        return self.module.text[start:end]

    def replace_node(
        self, node: ast.expr | ast.stmt, replacement: str, description: str
    ) -> CodeChange:
        """Replace a node by other code, in brackets if the surrounding operation binds tighter."""
        start, end = self.get_span(node)
        new = parse_expression(replacement) if isinstance(node, ast.expr) else None
        if new is not None and "\n" in replacement:
            replacement = ast.unparse(new)
        if new is not None and isinstance(node, ast.expr) and self._needs_brackets(node, new):
            replacement = f"({replacement})"
        return CodeChange(start, end, replacement, description)

    def _needs_brackets(self, node: ast.expr, replacement: ast.expr) -> bool:
        outer = self.parents[node]
        tight = (
            isinstance(outer, TIGHTLY_BINDING)
            or (isinstance(outer, ast.Call) and outer.func is node)
            or (isinstance(outer, ast.Subscript) and outer.value is node)
        )
        if not tight or not isinstance(replacement, LOOSELY_BINDING):
            return False
        if isinstance(outer, ast.Compare | ast.BoolOp) and isinstance(replacement, ast.BinOp):
            return False
        if isinstance(outer, ast.BinOp) and not isinstance(outer.op, ast.Pow):
            if isinstance(replacement, ast.UnaryOp) and not isinstance(replacement.op, ast.Not):
                return False
            if (
                outer.left is node
                and isinstance(replacement, ast.BinOp)
                and get_precedence(replacement) >= get_precedence(outer)
            ):
                return False
        start, end = self.get_span(node)
        before, behind = self.module.text[:start].rstrip(), self.module.text[end:].lstrip()
        return not (before.endswith("(") and behind.startswith(")"))

    def swap_nodes(self, first: ast.expr, second: ast.expr, description: str) -> CodeChange:
        """Swap two expressions."""
        (start, middle), (again, end) = self.get_span(first), self.get_span(second)
        text = self.module.text
        return CodeChange(
            start, end, text[again:end] + text[middle:again] + text[start:middle], description
        )

    def remove_items(
        self, items: list[ast.expr | ast.keyword], removed: set[int], description: str
    ) -> CodeChange:
        """Remove adjacent items from a list of arguments or operands."""
        first, last = min(removed), max(removed)
        if first:
            start, end = self.get_span(items[first - 1])[1], self.get_span(items[last])[1]
        else:
            start, end = self.get_span(items[0])[0], self.get_span(items[last + 1])[0]
        return CodeChange(start, end, "", description)


def get_precedence(node: ast.BinOp) -> int:
    """Return how tight an arithmetic operation binds."""
    if isinstance(node.op, ast.Add | ast.Sub):
        return 1
    return 2 if isinstance(node.op, ast.Mult | ast.Div | ast.FloorDiv | ast.Mod) else 0


def parse_expression(code: str) -> ast.expr | None:
    """Parse code as an expression; None if it is not one (the fault is dropped later)."""
    try:
        return ast.parse(f"({code})", mode="eval").body
    except SyntaxError:
        return None


def is_jit_decorator(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return get_dotted_name(called) in ("triton.jit", "jit", "tl.jit")


def get_dotted_name(node: ast.AST) -> str:
    """Return `a.b.c` for a chain of names, and `.b.c` for a chain on any other expression."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id if isinstance(node, ast.Name) else "", *reversed(parts)])


def get_last_name(node: ast.AST) -> str:
    """Return the name of a plain value: `topk` for `self.topk`; '' for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def iterate_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        for field in BODY_FIELDS:
            for child in getattr(node, field, []):
                yield from iterate_statements(
                    [child] if isinstance(child, ast.stmt) else child.body
                )


def iterate_mutable_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node, and all nodes inside it, that a fault may change."""
    if is_never_mutated(node):
        return
    yield node
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "args") and isinstance(
            node, (*FUNCTIONS, ast.AnnAssign, ast.arg, ast.Lambda)
        ):
            continue
        if field == "test" and isinstance(node, ast.If) and is_only_raise(node):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from iterate_mutable_nodes(child)


def is_never_mutated(node: ast.AST) -> bool:
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.ClassDef | ast.Import):
        return True
    if isinstance(node, ast.ImportFrom | ast.Global | ast.Nonlocal):
        return True
    if isinstance(node, FUNCTIONS) and node.name in DISPLAY_METHODS:
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    return (
        isinstance(node, ast.Call) and REPORTING_CALL.search(get_dotted_name(node.func)) is not None
    )


def is_only_raise(node: ast.If) -> bool:
    return not node.orelse and isinstance(node.body[-1], ast.Raise)
