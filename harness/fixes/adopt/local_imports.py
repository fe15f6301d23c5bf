"""Adds imports that a fix needs to the function that it changes.

A live toggle cannot change the imports of a module, which run once. On a release without the fix
the patched function therefore imports what the fix needs itself.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Sequence
from functools import lru_cache

from harness.core.source_scopes import ModuleSource
from harness.fixes.adopt.code_tokens import (
    DEDENT,
    INDENT,
    NEWLINE,
    CodeToken,
    PortError,
    split_lines,
    to_texts,
    tokenize_code,
)
from harness.releases.source_trees import SourceTree


def insert_imports(
    function_tokens: Sequence[CodeToken],
    names: Sequence[str],
    text: str,
    importer: ModuleSource,
    tree: SourceTree,
) -> list[CodeToken]:
    """Insert imports of these names, copied from `text`, at the start of a function."""
    found = [_find_import(name, text, importer, tree) for name in names]
    head = to_texts(function_tokens[: _find_body_start(function_tokens)])
    if "jit" in head[: head.index("def")]:
        raise PortError(f"it has no {names[0]}, and a kernel cannot import it")
    at = _find_body_start(function_tokens)
    put = [token for statement in dict.fromkeys(found) for token in tokenize_code(statement, "")]
    return [*function_tokens[:at], *put, *function_tokens[at:]]


def drop_own_imports(fixed: Sequence[CodeToken], buggy: Sequence[CodeToken]) -> list[CodeToken]:
    """Drop the fix's imports from the fixed tokens; each release gets the imports it needs.

    An import that rebinds a name which the buggy tokens import from elsewhere is the fix itself.
    """
    buggy_lines = {to_texts(buggy[a:b]) for a, b in split_lines(buggy)}
    names_of_buggy = {name for line in buggy_lines for name in _find_imported_names(line)}
    result: list[CodeToken] = []
    for a, b in split_lines(fixed):
        line = fixed[a:b]
        code = [token for token in line if token.text not in (INDENT, DEDENT)]
        own = (
            to_texts(line) not in buggy_lines
            and names_of_buggy.isdisjoint(names := _find_imported_names(to_texts(code)))
            and names
        )
        result += [token for token in line if token.text in (INDENT, DEDENT)] if own else line
    return result


def _find_imported_names(line: Sequence[str]) -> set[str]:
    """Find the names that a line imports."""
    code = [text for text in line if text not in (NEWLINE, INDENT, DEDENT)]
    if not code or code[0] not in ("import", "from"):
        return set()
    try:
        [node] = ast.parse(" ".join(code)).body
    except SyntaxError:
        return set()
    assert isinstance(node, ast.Import | ast.ImportFrom)
    return {alias.asname or alias.name.partition(".")[0] for alias in node.names}


def _find_body_start(function_tokens: Sequence[CodeToken]) -> int:
    """Find a function's first statement after its docstring."""
    texts = to_texts(function_tokens)
    if "def" not in texts or INDENT not in texts or "class" in texts[: texts.index("def")]:
        raise PortError("it is no function that could import what it needs")
    at = texts.index(INDENT) + 1
    is_docstring = texts[at].lstrip("rbfuRBFU")[:1] in ('"', "'") and texts[at + 1] == NEWLINE
    return at + 2 if is_docstring else at


def _find_import(name: str, text: str, importer: ModuleSource, tree: SourceTree) -> str:
    """Find the import of a name, if the release has its source."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound_name = alias.asname or alias.name.partition(".")[0]
                if bound_name == name and _has_name(tree, importer, alias.name, ""):
                    return ast.unparse(ast.Import([alias]))
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                known = _has_name(tree, importer, node.module, alias.name)
                if (alias.asname or alias.name) == name and known:
                    return ast.unparse(ast.ImportFrom(node.module, [alias], 0))
    raise PortError(f"it has no {name}")


def _has_name(tree: SourceTree, importer: ModuleSource, module: str, name: str) -> bool:
    """Return whether a name can be imported; the module must already import a foreign package."""
    package = module.partition(".")[0]
    if package != "sglang":
        used = re.search(rf"^\s*(import|from) {re.escape(package)}\b", importer.text, re.MULTILINE)
        return package in sys.stdlib_module_names or used is not None
    source = tree.read(module)
    if source is None:
        return False
    return (
        not name
        or name in _find_defined_names(source.text)
        or tree.read(f"{module}.{name}") is not None
    )


@lru_cache(maxsize=256)
def _find_defined_names(text: str) -> set[str]:
    """Find the names that a module defines at its top level."""
    found: set[str] = set()
    waiting: list[ast.stmt] = list(ast.parse(text).body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.If | ast.Try | ast.With):
            waiting += [
                statement
                for statement in ast.iter_child_nodes(node)
                if isinstance(statement, ast.stmt)
            ]
            waiting += [
                statement for part in getattr(node, "handlers", ()) for statement in part.body
            ]
        else:
            found |= {
                name.id
                for name in ast.walk(node)
                if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
            }
    return found
