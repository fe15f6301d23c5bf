"""Two adjacent arguments of the same kind change places."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator

from harness.fixes.registry.schema import Symptom
from harness.runs.mutate.function_code import (
    CodeChange,
    FunctionCode,
    get_dotted_name,
    get_last_name,
)

TITLE = "Swap two index arguments of the same type"
PRS = (7239, 26534)
SYMPTOM = Symptom.SILENT_CORRUPTION
ORDERLESS_CALL = re.compile(r"(^|\.)(min|max|minimum|maximum|range|static_range)$")
ARGUMENT_KINDS = [
    re.compile(pattern)
    for pattern in (
        r"indptr",
        r"indices$|_locs?$|_idx$|_index$|page_table|_ids$",
        r"(lens|lengths|seqlens\w*)$|_lens_",
        r"(len|length)$",
        r"stride",
        r"(size|width|topk|steps|count|dim|_bs)$|^(num|max)_\w+|^bs$",
        r"(start|end|base|offset|pos|positions)s?$",
    )
]


def find_changes(function: FunctionCode) -> Iterator[CodeChange]:
    for call in function.find_nodes(ast.Call):
        assert isinstance(call, ast.Call)
        if ORDERLESS_CALL.search(get_dotted_name(call.func)):
            continue
        for one, other in itertools.pairwise(call.args):
            if is_same_kind(one, other) and ast.dump(one) != ast.dump(other):
                words = f"{function.get_text(one)} and {function.get_text(other)} change places"
                yield function.swap_nodes(one, other, words)
        for first, second in itertools.pairwise(k for k in call.keywords if k.arg):
            one, other = first.value, second.value
            if is_same_kind(one, other, ARGUMENT_KINDS[:5]) and ast.dump(one) != ast.dump(other):
                words = f"{function.get_text(one)} and {function.get_text(other)} change places"
                yield function.swap_nodes(one, other, words)


def is_same_kind(
    first: ast.expr, second: ast.expr, kinds: list[re.Pattern[str]] = ARGUMENT_KINDS
) -> bool:
    names = [get_last_name(n.value if isinstance(n, ast.Subscript) else n) for n in (first, second)]
    return all(names) and any(all(kind.search(name) for name in names) for kind in kinds)
