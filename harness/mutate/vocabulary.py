"""What SGLang's names say: which are lengths, rows, tables, pointers, and which calls allocate."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from harness.mutate.code import FunctionCode, dotted, last_name

ALLOCATES = r"(^|\.)(zeros|ones|empty|full|new_zeros|new_ones|new_empty|new_full)$"
SIZES = r"(^|[._])(width|numel|capacity|size|sizes|extra_context_len)$"
SIZE = re.compile(
    r"(size|width|len|lens|num|numel|capacity|max|bs|count|rows|cols|total|extra)(_|$)", re.I
)
LENGTH = re.compile(
    r"(len|lens|length|lengths|prefix|offset|start|base|begin|pos|positions|seqlen)s?(_|$)"
)
ROW = re.compile(
    r"^(pid|bid|row|token|batch|req|seq|i|j|b|r)(_?(idx|id|index|pool_idx|x|m|0))?s?$|_(row|req_idx|batch_idx|req_pool_idx|pid)$"
)
TABLE = re.compile(r"(table|mapping|map|req_to_token|_to_|token_id|v2p|lut|loc_plan)", re.I)
TRANSLATES = r"(^|[._])(translate|remap|map)_|full_to_swa|to_physical"
POINTER = re.compile(r"(_ptr|_pointer|ptr)s?$")
STRIDE = re.compile(r"stride", re.I)
MASK = re.compile(r"(^|_)(mask|valid|owned|live|active|in_\w+|is_\w+)(_|$)|^(go_|has_)", re.I)
PAGE = re.compile(r"(^|_)(page_size|block_size)$", re.I)


def named(node: ast.AST, pattern: re.Pattern[str]) -> bool:
    """Whether a plain name, or what a row of it is called, fits."""
    if isinstance(node, ast.Subscript):
        node = node.value
    return pattern.search(last_name(node)) is not None


def loads(function: FunctionCode) -> Iterator[ast.Call]:
    yield from function.calls(r"^tl\.load$")


def accesses(function: FunctionCode) -> Iterator[ast.Call]:
    yield from function.calls(r"^tl\.(load|store|atomic_\w+)$")


def keyword(call: ast.Call, name: str) -> ast.keyword | None:
    return next((k for k in call.keywords if k.arg == name), None)


def sizes_of(call: ast.Call) -> list[ast.expr]:
    """The sizes that an allocation is asked for, one for each of its dimensions."""
    name = dotted(call.func).rpartition(".")[2]
    size = keyword(call, "size")
    asked: list[ast.expr]
    if size is not None:
        asked = [size.value]
    else:
        asked = call.args[:1] if name in ("full", "new_full") else list(call.args)
    if len(asked) == 1 and isinstance(asked[0], ast.Tuple | ast.List):
        asked = asked[0].elts
    return [node for node in asked if not isinstance(node, ast.Starred)]


def sizes(function: FunctionCode) -> Iterator[ast.expr]:
    """Every expression that becomes a dimension of a buffer: on the spot, or by a local name."""
    seen: set[ast.AST] = set()
    live = set(function.nodes)
    for call in function.calls(ALLOCATES):
        if function.kernel:
            continue  # tl.zeros takes powers of two alone
        for size in sizes_of(call):
            named_sizes = function.assigned.get(last_name(size), [])
            for value in (size, *(v for v in named_sizes if isinstance(v, ast.BinOp))):
                if value not in seen and value in live:
                    seen.add(value)
                    yield value
    if re.search(SIZES, function.node.name) and not function.kernel:
        for node in function.of(ast.Return):
            assert isinstance(node, ast.Return)
            if node.value is not None and node.value not in seen:
                yield node.value


def factors(node: ast.expr) -> Iterator[ast.expr]:
    """The factors of a product, left to right; of anything else nothing."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        for side in (node.left, node.right):
            inner = list(factors(side))
            yield from inner or [side]


def addends(node: ast.expr) -> Iterator[ast.expr]:
    """The terms of a sum, left to right; of anything else nothing."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        for side in (node.left, node.right):
            inner = list(addends(side))
            yield from inner or [side]


def is_number(node: ast.AST, *values: int) -> bool:
    return (
        isinstance(node, ast.Constant)
        and type(node.value) is int
        and (not values or node.value in values)
    )
