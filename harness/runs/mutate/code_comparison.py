"""Checks whether a changed function still compiles, and whether its code is the same as before.

A large function has hundreds of candidates, and a tree for each would take long. If the text of the
changed statement can be parsed alone, only that is parsed, and the whole function is only compiled.
Both ways give the same answer. Example: for a change in one of 50 assignments, one line is parsed.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property
from types import CodeType

from harness.runs.mutate.function_code import (
    BODY_FIELDS,
    FUNCTIONS,
    CodeChange,
    FunctionCode,
    iterate_statements,
)


class OriginalFunction:
    """The unchanged function: its bytecode, and its statements in normal form."""

    def __init__(self, function: FunctionCode) -> None:
        node = function.node
        self.function = function
        self.start = function.module.get_offset(node.lineno, 0)
        self.end = function.module.get_span(node)[1]
        self.bytecode = compile(self.render_code(None), "<function>", "exec", dont_inherit=True)
        self._header_nodes = [_strip_bodies(statement) for statement in function.statements]
        # Every statement, a compound one without its bodies.
        self.headers = tuple(map(ast.unparse, self._header_nodes))

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        return [self.function.get_span(statement) for statement in self.function.statements]

    def get_lines(self, index: int) -> range:
        """Return the lines of a statement, or of a compound one's header."""
        statement = self.function.statements[index]
        last = statement.end_lineno or statement.lineno
        body = getattr(statement, "body", None) or getattr(statement, "cases", None)
        if body:
            inner = body[0]
            begins = inner.pattern.lineno if isinstance(inner, ast.match_case) else inner.lineno
            last = max(statement.lineno, begins - 1)
        return range(statement.lineno, last + 1)

    def compile_change(self, change: CodeChange, index: int) -> ChangedStatement:
        return compile_change(self, change, index)

    @cached_property
    def header_dumps(self) -> list[str]:
        return [ast.dump(head) for head in self._header_nodes]

    @cached_property
    def function_dump(self) -> str:
        return ast.dump(ast.parse(self.render_code(None)))

    def render_code(self, change: CodeChange | None) -> str:
        """Render the function's own text with a change."""
        text = self.function.module.text
        code = text[self.start : self.end]
        if change is not None:
            code = (
                text[self.start : change.start] + change.replacement + text[change.end : self.end]
            )
        return f"if True:\n{code}" if self.function.node.col_offset else code


@dataclass(frozen=True, slots=True)
class ChangedStatement:
    """A statement with a change, or the reason why the change is no fault."""

    header: str = ""  # the statement in normal form, a compound one without its bodies
    drop_reason: str = ""


def compile_change(original: OriginalFunction, change: CodeChange, index: int) -> ChangedStatement:
    """Compile a function with a change in the statement of that index; return the statement."""
    head = _parse_changed_statement(original, change, index)
    code = original.render_code(change)
    try:
        if head is None:
            tree = ast.parse(code)
        elif ast.dump(head) == original.header_dumps[index]:
            return ChangedStatement(drop_reason="the same code, written in another way")
        bytecode = compile(code, "<function>", "exec", dont_inherit=True)
    except SyntaxError as error:
        return ChangedStatement(drop_reason=f"does not compile: {error.msg}")
    if head is None:
        defined = tree.body[0].body[0] if isinstance(tree.body[0], ast.If) else tree.body[0]
        assert isinstance(defined, ast.FunctionDef | ast.AsyncFunctionDef)
        statements = list(iterate_statements(defined.body))
        if len(statements) != len(original.headers):
            return ChangedStatement(drop_reason="takes a statement away or adds one")
        if ast.dump(tree) == original.function_dump:
            return ChangedStatement(drop_reason="the same code, written in another way")
        head = _strip_bodies(statements[index])
    if _is_same_bytecode(original.bytecode, bytecode):
        return ChangedStatement(drop_reason="the same bytecode")
    return ChangedStatement(ast.unparse(head))


def _parse_changed_statement(
    original: OriginalFunction, change: CodeChange, index: int
) -> ast.stmt | None:
    """Parse the changed statement, or a compound one's header, from its own text.

    Return None if the change is not in the header alone, or the text cannot be parsed alone.
    """
    function = original.function
    statement = function.statements[index]
    start, end = function.get_span(statement)
    body = getattr(statement, "body", [])
    if isinstance(statement, ast.Match | ast.Try | ast.TryStar):
        return None
    if body:
        if isinstance(body[0], (*FUNCTIONS, ast.ClassDef)) and body[0].decorator_list:
            return None
        end = function.get_span(body[0])[0]
    if not start <= change.start <= change.end <= end:
        return None
    text = function.module.text
    code = text[start : change.start] + change.replacement + text[change.end : end]
    if isinstance(statement, ast.If) and text.startswith("elif", start):
        code = code.removeprefix("el")
    try:
        tree = ast.parse(f"if True:\n {code}{'pass' if body else ''}")
    except SyntaxError:
        return None
    (block,) = tree.body if len(tree.body) == 1 else (None,)
    parsed = block.body if isinstance(block, ast.If) and not block.orelse else []
    if len(parsed) != 1 or hasattr(parsed[0], "body") != bool(body):
        return None
    if body and type(parsed[0]) is not type(statement):
        return None
    return _strip_bodies(parsed[0])


def _is_same_bytecode(first: CodeType, second: CodeType) -> bool:
    """Return whether instructions, names and constants are the same; lines may differ."""
    facts = ("co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_flags")
    if any(getattr(first, fact) != getattr(second, fact) for fact in facts):
        return False
    if len(first.co_consts) != len(second.co_consts):
        return False
    return all(
        _is_same_constant(*pair) for pair in zip(first.co_consts, second.co_consts, strict=True)
    )


def _is_same_constant(first: object, second: object) -> bool:
    if isinstance(first, CodeType) and isinstance(second, CodeType):
        return _is_same_bytecode(first, second)
    return type(first) is type(second) and repr(first) == repr(second)


def _strip_bodies(statement: ast.stmt) -> ast.stmt:
    """Return a statement in normal form, without its bodies."""
    fields = {
        name: value for name, value in ast.iter_fields(statement) if name not in BODY_FIELDS
    } | {name: [] for name in BODY_FIELDS if hasattr(statement, name)}
    if fields.get("body") is not None:
        fields["body"] = [ast.Pass()]
    return ast.fix_missing_locations(type(statement)(**fields))
