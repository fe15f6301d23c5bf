"""A padded length is used for the real one, or the real one for the padded."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from harness.fixes.registry.schema import Symptom
from harness.runs.mutate.function_code import CodeChange, FunctionCode, get_last_name

TITLE = "Use the padded for the real length, and back"
PRS = (1789, 22404, 1094)
SYMPTOM = Symptom.SILENT_CORRUPTION
AFFIX = re.compile(
    r"^(padded|pad|max|raw|real|num_padded|graph)_|_(padded|pad|aligned|real)$", re.I
)


def find_changes(function: FunctionCode) -> Iterator[CodeChange]:
    pairs = find_padded_pairs(function)
    for node in function.find_nodes(ast.Name, ast.Attribute):
        assert isinstance(node, ast.Name | ast.Attribute)
        if not isinstance(node.ctx, ast.Load):
            continue
        twin = pairs.get(ast.unparse(node))
        if twin is not None and is_defined_before(function, twin, node):
            words = f"{twin} stands where {function.get_text(node)} belongs"
            yield function.replace_node(node, twin, words)


def find_padded_pairs(function: FunctionCode) -> dict[str, str]:
    """Pair values like `n` and `padded_n` or `max_n`, in both directions."""
    spoken = {
        ast.unparse(n): n
        for n in ast.walk(function.node)
        if isinstance(n, ast.Name | ast.Attribute)
    } | {name: ast.Name(name) for name in function.parameters}
    stems: dict[tuple[str, str], list[str]] = {}
    for code, node in spoken.items():
        name = get_last_name(node)
        owner = code[: len(code) - len(name)]
        stems.setdefault((owner, AFFIX.sub("", name).lower().rstrip("s")), []).append(code)
    pairs: dict[str, str] = {}
    for codes in stems.values():
        if len(codes) == 2:
            one, other = sorted(codes)
            if AFFIX.search(one.rpartition(".")[2]) or AFFIX.search(other.rpartition(".")[2]):
                pairs[one], pairs[other] = other, one
    return pairs


def is_defined_before(function: FunctionCode, name: str, node: ast.expr) -> bool:
    """Return whether a local name has a value before a node; other names count as defined."""
    stores = [
        n.lineno
        for n in ast.walk(function.node)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and n.id == name
    ]
    return (
        "." in name or name in function.parameters or (bool(stores) and min(stores) < node.lineno)
    )
