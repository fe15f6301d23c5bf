"""The meaning of names in SGLang: lengths, rows, tables, pointers, and allocating calls."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from harness.runs.mutate.function_code import FunctionCode, get_dotted_name, get_last_name

ALLOCATION_CALL = r"(^|\.)(zeros|ones|empty|full|new_zeros|new_ones|new_empty|new_full)$"
SIZE_CALL = r"(^|[._])(width|numel|capacity|size|sizes|extra_context_len)$"
SIZE_NAME = re.compile(
    r"(size|width|len|lens|num|numel|capacity|max|bs|count|rows|cols|total|extra)(_|$)", re.I
)
LENGTH_NAME = re.compile(
    r"(len|lens|length|lengths|prefix|offset|start|base|begin|pos|positions|seqlen)s?(_|$)"
)
ROW_NAME = re.compile(
    r"^(pid|bid|row|token|batch|req|seq|i|j|b|r)(_?(idx|id|index|pool_idx|x|m|0))?s?$|_(row|req_idx|batch_idx|req_pool_idx|pid)$"
)
TABLE_NAME = re.compile(r"(table|mapping|map|req_to_token|_to_|token_id|v2p|lut|loc_plan)", re.I)
TRANSLATION_CALL = r"(^|[._])(translate|remap|map)_|full_to_swa|to_physical"
POINTER_NAME = re.compile(r"(_ptr|_pointer|ptr)s?$")
STRIDE_NAME = re.compile(r"stride", re.I)
MASK_NAME = re.compile(r"(^|_)(mask|valid|owned|live|active|in_\w+|is_\w+)(_|$)|^(go_|has_)", re.I)
PAGE_SIZE_NAME = re.compile(r"(^|_)(page_size|block_size)$", re.I)


def has_name(node: ast.AST, pattern: re.Pattern[str]) -> bool:
    """Return whether the name of a value, or of the tensor it indexes, matches."""
    if isinstance(node, ast.Subscript):
        node = node.value
    return pattern.search(get_last_name(node)) is not None


def iterate_loads(function: FunctionCode) -> Iterator[ast.Call]:
    yield from function.find_calls(r"^tl\.load$")


def iterate_accesses(function: FunctionCode) -> Iterator[ast.Call]:
    yield from function.find_calls(r"^tl\.(load|store|atomic_\w+)$")


def find_keyword(call: ast.Call, name: str) -> ast.keyword | None:
    return next((k for k in call.keywords if k.arg == name), None)


def list_allocation_sizes(call: ast.Call) -> list[ast.expr]:
    """List the sizes that an allocation requests, one for each of its dimensions."""
    name = get_dotted_name(call.func).rpartition(".")[2]
    size = find_keyword(call, "size")
    sizes: list[ast.expr]
    if size is not None:
        sizes = [size.value]
    else:
        sizes = call.args[:1] if name in ("full", "new_full") else list(call.args)
    if len(sizes) == 1 and isinstance(sizes[0], ast.Tuple | ast.List):
        sizes = sizes[0].elts
    return [node for node in sizes if not isinstance(node, ast.Starred)]


def iterate_size_expressions(function: FunctionCode) -> Iterator[ast.expr]:
    """Yield every expression for a dimension of a buffer, in the call or through a local name."""
    seen: set[ast.AST] = set()
    live = set(function.mutable_nodes)
    for call in function.find_calls(ALLOCATION_CALL):
        if function.is_kernel:
            continue  # tl.zeros accepts only powers of two
        for size in list_allocation_sizes(call):
            named_sizes = function.assigned_values.get(get_last_name(size), [])
            for value in (size, *(v for v in named_sizes if isinstance(v, ast.BinOp))):
                if value not in seen and value in live:
                    seen.add(value)
                    yield value
    if re.search(SIZE_CALL, function.node.name) and not function.is_kernel:
        for node in function.find_nodes(ast.Return):
            assert isinstance(node, ast.Return)
            if node.value is not None and node.value not in seen:
                yield node.value


def iterate_factors(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the factors of a product, left to right; nothing for any other expression."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        for side in (node.left, node.right):
            inner = list(iterate_factors(side))
            yield from inner or [side]


def iterate_addends(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the terms of a sum, left to right; nothing for any other expression."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        for side in (node.left, node.right):
            inner = list(iterate_addends(side))
            yield from inner or [side]


def is_number(node: ast.AST, *values: int) -> bool:
    return (
        isinstance(node, ast.Constant)
        and type(node.value) is int
        and (not values or node.value in values)
    )
