"""Finds sets of operations that a module keeps beside a table of them."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator
from pathlib import Path


def find_sets(file: Path, names: Container[str]) -> Iterator[int]:
    """Find the lines with a collection of two or more of these names and nothing else.

    A dictionary of functions is none: it says how each is computed.
    """
    for node in _list_collections(ast.parse(file.read_text())):
        words = [word.removeprefix("ptx.") for word in _list_words(node)]
        if len(words) > 1 and all(word in names for word in words):
            yield node.lineno


def _list_collections(tree: ast.Module) -> Iterator[ast.expr]:
    """List what a module keeps, and what it compares an operation's opcode with.

    Verbs of an atomic update and other modifiers have names of instructions, too.
    """
    for statement in tree.body:
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
            yield from (one for one in ast.walk(statement.value) if isinstance(one, ast.expr))
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and ast.unparse(node.left).endswith("opcode"):
            yield from node.comparators


def _list_words(node: ast.expr) -> list[str]:
    """List the strings of a collection, or the words of a string that is split."""
    elements: list[ast.expr] = []
    match node:
        case ast.Tuple(elts=elements) | ast.List(elts=elements) | ast.Set(elts=elements):
            pass
        case ast.Dict(keys=keys, values=values) if not any(map(_is_function, values)):
            elements = [key for key in keys if key is not None]
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="split")):
            return text.split()
    words = [one.value for one in elements if isinstance(one, ast.Constant)]
    is_plain = len(words) == len(elements)
    return [word for word in words if isinstance(word, str)] if is_plain else []


def _is_function(value: ast.expr) -> bool:
    return isinstance(value, (ast.Name, ast.Attribute, ast.Lambda, ast.Call))
