"""Imports that a fix needs, inside of the function that it changes.

A module's own import is left where it is: it does nothing by itself, and is run once, before a
toggle can come. Where the fix never was, the function imports by itself what the fix needs.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Sequence

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
    """The fixed tokens without imports of its own: each release is asked anew what it needs."""
    kept = {key(buggy[a:b]) for a, b in lines(buggy)}
    result: list[Token] = []
    for a, b in lines(fixed):
        line = fixed[a:b]
        code = [token for token in line if token.text not in (IN, OUT)]
        own = code and code[0].text in ("import", "from") and key(line) not in kept
        result += [token for token in line if token.text in (IN, OUT)] if own else line
    return result


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
    own = not name or re.search(rf"^(\w.*\b)?{re.escape(name)}\b", source.text, re.MULTILINE)
    return bool(own) or tree.read(f"{module}.{name}") is not None
