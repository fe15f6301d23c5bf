"""The script of a finding: the first test that fails, with what it uses and nothing else.

A reader of a pull request wants the bug in one screen; a test file of SGLang has a registration, a
base class that repeats failures, and more tests. So the script is cut from the test: there is one
source, and `repro.py` shows what the test asserts. Example: if `test_eager` fails, `test_graph`
goes, with the helper and the import that it alone used.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

LONGEST_SCRIPT = 40  # lines that are not empty
_BASE_CLASS = "CustomTestCase"  # of SGLang, which runs a failed test again
_SET_UP = ("setUp", "setUpClass", "tearDown", "tearDownClass")


def cut_script(test_text: str, test: str) -> str:
    """Cut the script of one test, such as `test_eager`, out of its file."""
    text = test_text.replace(f"({_BASE_CLASS})", "(unittest.TestCase)")
    tree = ast.parse(text)
    [owner] = [
        node
        for node in tree.body
        if isinstance(node, ast.ClassDef) and test in {_get_name(each) for each in node.body}
    ]
    dropped = {id(each) for each in _list_unused_methods(owner, test)}
    body = [node for node in tree.body if not _is_of_ci(node)]
    used = {"unittest"} | _collect_names(owner, dropped)
    kept: list[ast.stmt] = []
    while found := [
        node
        for node in body
        if node not in kept
        and (node is owner or _has_effect(node) or _list_defined_names(node) & used)
    ]:
        kept += found
        for node in found:
            if not isinstance(node, ast.Import | ast.ImportFrom):
                used |= _collect_names(node, dropped)
    lines = text.splitlines()
    blocks = [""]
    for node in (node for node in body if node in kept):
        is_block = isinstance(node, ast.FunctionDef | ast.ClassDef)
        blocks[-1] += "" if is_block else _format_statement(node, lines, used, dropped) + "\n"
        blocks += [_format_statement(node, lines, used, dropped) + "\n", ""] if is_block else []
    blocks.append('if __name__ == "__main__":\n    unittest.main()\n')
    return "\n\n".join(block for block in blocks if block)


def list_tests(test_text: str) -> list[str]:
    return re.findall(r"^    def (test_\w+)", test_text, re.MULTILINE)


def count_lines(script: str) -> int:
    return sum(bool(line.strip()) for line in script.splitlines())


def _get_name(node: ast.AST) -> str:
    return getattr(node, "name", "")


def _list_unused_methods(owner: ast.ClassDef, test: str) -> Iterator[ast.stmt]:
    """List the methods that one test does not call, directly or through others."""
    methods = {_get_name(node): node for node in owner.body if isinstance(node, ast.FunctionDef)}
    used, waiting = set(_SET_UP), [test, *_SET_UP]
    while waiting:
        method = methods.get(name := waiting.pop())
        used.add(name)
        if method is not None:
            waiting += (_collect_attributes(method) & methods.keys()) - used
    return (node for name, node in methods.items() if name not in used)


def _collect_attributes(node: ast.AST) -> set[str]:
    return {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}


def _collect_names(node: ast.AST, dropped: set[int]) -> set[str]:
    if id(node) in dropped:
        return set()
    names = {node.id} if isinstance(node, ast.Name) else set()
    for child in ast.iter_child_nodes(node):
        names |= _collect_names(child, dropped)
    return names


def _is_of_ci(node: ast.stmt) -> bool:
    """Return whether a statement registers the file or runs its tests."""
    if isinstance(node, ast.If):
        return "__name__" in _collect_names(node.test, set())
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and ast.unparse(call.func).endswith("_ci")


def _has_effect(node: ast.stmt) -> bool:
    """Return whether a statement does something, such as `os.environ["A"] = "1"`."""
    return not _list_defined_names(node) or isinstance(node, ast.If | ast.For | ast.With | ast.Try)


def _list_defined_names(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {_name_import(alias) for alias in node.names}
    stored = (n for n in ast.walk(node) if isinstance(n, ast.Name))
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    return {name.id for name in stored if isinstance(name.ctx, ast.Store)}


def _name_import(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _format_statement(node: ast.stmt, lines: list[str], used: set[str], dropped: set[int]) -> str:
    if isinstance(node, ast.Import | ast.ImportFrom):
        node.names = [alias for alias in node.names if _name_import(alias) in used]
        return ast.unparse(node)
    gone = {
        line
        for each in getattr(node, "body", [])
        if id(each) in dropped
        for line in range(_find_start(each), (each.end_lineno or 0) + 1)  # with the empty one
    }
    kept = [line for line in range(_find_start(node), node.end_lineno or 0) if line not in gone]
    return "\n".join(lines[line] for line in kept).rstrip()


def _find_start(node: ast.stmt) -> int:
    decorators = getattr(node, "decorator_list", [])
    first: int = min([node.lineno, *(each.lineno for each in decorators)])
    return first - 1
