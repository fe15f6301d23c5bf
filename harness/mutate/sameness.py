"""Whether a changed function still compiles, and whether it is the same code as before."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from types import CodeType

from harness.mutate.code import HEADS, Change, FunctionCode, statements


@dataclass(frozen=True, slots=True)
class Written:
    """A function, as it is or with a change in it: its tree, its bytecode, its statements."""

    tree: str
    bytecode: CodeType
    headers: tuple[str, ...]  # every statement in normal form, a compound one without its bodies


def written(
    function: FunctionCode, change: Change | None, original: Written | None = None
) -> Written | str:
    """The function with a change, compiled; or why that is no Python."""
    text, node = function.module.text, function.node
    start = function.module.offset(node.lineno, 0)
    end = function.module.span(node)[1]
    code = text[start:end]
    if change is not None:
        code = text[start : change.start] + change.after + text[change.end : end]
    code = f"if True:\n{code}" if node.col_offset else code
    try:
        tree = ast.parse(code)
        bytecode = compile(code, "<function>", "exec", dont_inherit=True)
    except SyntaxError as error:
        return f"does not compile: {error.msg}"
    defined = tree.body[0].body[0] if isinstance(tree.body[0], ast.If) else tree.body[0]
    assert isinstance(defined, ast.FunctionDef | ast.AsyncFunctionDef)
    headers = tuple(_header(statement) for statement in statements(defined.body))
    if original is not None and len(headers) != len(original.headers):
        return "takes a statement away or adds one"
    return Written(ast.dump(tree), bytecode, headers)


def why_same(original: Written, changed: Written) -> str:
    """Why a change is none; '' if it is one."""
    if original.tree == changed.tree:
        return "the same code, written in another way"
    if _alike(original.bytecode, changed.bytecode):
        return "the same bytecode"
    return ""


def _alike(one: CodeType, other: CodeType) -> bool:
    """The same instructions on the same names and constants, wherever they stand."""
    facts = ("co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_flags")
    if any(getattr(one, fact) != getattr(other, fact) for fact in facts):
        return False
    if len(one.co_consts) != len(other.co_consts):
        return False
    return all(_same(*pair) for pair in zip(one.co_consts, other.co_consts, strict=True))


def _same(one: object, other: object) -> bool:
    if isinstance(one, CodeType) and isinstance(other, CodeType):
        return _alike(one, other)
    return type(one) is type(other) and repr(one) == repr(other)


def _header(statement: ast.stmt) -> str:
    """A statement in normal form, its bodies left out."""
    fields = {name: value for name, value in ast.iter_fields(statement) if name not in HEADS} | {
        name: [] for name in HEADS if hasattr(statement, name)
    }
    if fields.get("body") is not None:
        fields["body"] = [ast.Pass()]
    return ast.unparse(ast.fix_missing_locations(type(statement)(**fields)))
