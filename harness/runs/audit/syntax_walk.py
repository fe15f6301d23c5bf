"""Walks over syntax trees, faster than those of `ast`: a release has millions of nodes."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def iterate_children(node: ast.AST) -> Iterator[ast.AST]:
    """Iterate the children in the order of the text."""
    for value in vars(node).values():
        if isinstance(value, ast.AST):
            yield value
        elif type(value) is list:
            yield from (one for one in value if isinstance(one, ast.AST))


def walk_tree(node: ast.AST) -> Iterator[ast.AST]:
    """Iterate the node and its descendants, in no particular order."""
    waiting = [node]
    while waiting:
        one = waiting.pop()
        yield one
        for value in vars(one).values():
            if isinstance(value, ast.AST):
                waiting.append(value)
            elif type(value) is list:
                waiting += [each for each in value if isinstance(each, ast.AST)]
