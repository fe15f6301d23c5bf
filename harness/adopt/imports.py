"""Imports that a fix needs, inside of the function that it changes.

A module's own import is left where it is: it does nothing by itself, and is run once, before a
toggle can come. Where the fix never was, the function imports by itself what the fix needs.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Sequence
from functools import lru_cache

from harness.adopt.tokens import IN, LINE, OUT, Lost, Token, key, lines, tokens
from harness.releases.sources import SourceTree
from harness.syntax.scopes import ModuleSource


def inside(
    made: Sequence[Token], names: Sequence[str], text: str, there: ModuleSource, tree: SourceTree
) -> list[Token]:
    """A function's tokens, with the imports of these names, as `text` has them, at its start."""
    found = [_statement(name, text, there, tree) for name in names]
    head = key(made[: _body(made)])
    if "jit" in head[: head.index("def")]:
        raise Lost(f"it has no {names[0]}, and a kernel cannot import it")
    at = _body(made)
    put = [token for one in dict.fromkeys(found) for token in tokens(one, "")]
    return [*made[:at], *put, *made[at:]]


def without(fixed: Sequence[Token], buggy: Sequence[Token]) -> list[Token]:
    """The fixed tokens without imports of its own: each release is asked anew what it needs.

    One that binds a name which the buggy tokens import, too, from elsewhere, is the fix itself.
    """
    kept = {key(buggy[a:b]) for a, b in lines(buggy)}
    known = {name for line in kept for name in _bound(line)}
    result: list[Token] = []
    for a, b in lines(fixed):
        line = fixed[a:b]
        code = [token for token in line if token.text not in (IN, OUT)]
        own = key(line) not in kept and known.isdisjoint(names := _bound(key(code))) and names
        result += [token for token in line if token.text in (IN, OUT)] if own else line
    return result


def _bound(line: Sequence[str]) -> set[str]:
    """The names that a line brings, if it is an import."""
    code = [text for text in line if text not in (LINE, IN, OUT)]
    if not code or code[0] not in ("import", "from"):
        return set()
    try:
        [node] = ast.parse(" ".join(code)).body
    except SyntaxError:
        return set()
    assert isinstance(node, ast.Import | ast.ImportFrom)
    return {alias.asname or alias.name.partition(".")[0] for alias in node.names}


def _body(made: Sequence[Token]) -> int:
    """Where the first statement of a function begins, behind what it says of itself."""
    texts = key(made)
    if "def" not in texts or IN not in texts or "class" in texts[: texts.index("def")]:
        raise Lost("it is no function that could import what it needs")
    at = texts.index(IN) + 1
    said = texts[at].lstrip("rbfuRBFU")[:1] in ('"', "'") and texts[at + 1] == LINE
    return at + 2 if said else at


def _statement(name: str, text: str, there: ModuleSource, tree: SourceTree) -> str:
    """The import that brings a name, where the release has what it is taken from."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                own = alias.asname or alias.name.partition(".")[0]
                if own == name and _has(tree, there, alias.name, ""):
                    return ast.unparse(ast.Import([alias]))
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                known = _has(tree, there, node.module, alias.name)
                if (alias.asname or alias.name) == name and known:
                    return ast.unparse(ast.ImportFrom(node.module, [alias], 0))
    raise Lost(f"it has no {name}")


def _has(tree: SourceTree, there: ModuleSource, module: str, name: str) -> bool:
    """Whether a release has a module, and that a name; of others, what its own code imports."""
    package = module.partition(".")[0]
    if package != "sglang":
        used = re.search(rf"^\s*(import|from) {re.escape(package)}\b", there.text, re.MULTILINE)
        return package in sys.stdlib_module_names or used is not None
    source = tree.read(module)
    if source is None:
        return False
    return not name or name in _defined(source.text) or tree.read(f"{module}.{name}") is not None


@lru_cache(maxsize=256)
def _defined(text: str) -> set[str]:
    """The names that a module has once it is imported, as far as its text tells."""
    found: set[str] = set()
    waiting: list[ast.stmt] = list(ast.parse(text).body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.If | ast.Try | ast.With):
            waiting += [one for one in ast.iter_child_nodes(node) if isinstance(one, ast.stmt)]
            waiting += [one for part in getattr(node, "handlers", ()) for one in part.body]
        else:
            found |= {
                one.id
                for one in ast.walk(node)
                if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
            }
    return found
