"""Two arguments of the same kind that stand side by side change places."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator

from harness.mutate.code import Change, FunctionCode, dotted, last_name
from harness.registry.schema import Symptom

TITLE = "Swap two index arguments of the same type"
PRS = (7239, 26534)
SYMPTOM = Symptom.SILENT_CORRUPTION
ORDERLESS = re.compile(r"(^|\.)(min|max|minimum|maximum|range|static_range)$")
KINDS = [
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


def find(function: FunctionCode) -> Iterator[Change]:
    for call in function.of(ast.Call):
        assert isinstance(call, ast.Call)
        if ORDERLESS.search(dotted(call.func)):
            continue
        for one, other in itertools.pairwise(call.args):
            if alike(one, other) and ast.dump(one) != ast.dump(other):
                words = f"{function.code(one)} and {function.code(other)} change places"
                yield function.exchanged(one, other, words)
        for first, second in itertools.pairwise(k for k in call.keywords if k.arg):
            one, other = first.value, second.value
            if alike(one, other, KINDS[:5]) and ast.dump(one) != ast.dump(other):
                words = f"{function.code(one)} and {function.code(other)} change places"
                yield function.exchanged(one, other, words)


def alike(one: ast.expr, other: ast.expr, kinds: list[re.Pattern[str]] = KINDS) -> bool:
    names = [last_name(n.value if isinstance(n, ast.Subscript) else n) for n in (one, other)]
    return all(names) and any(all(kind.search(name) for name in names) for kind in kinds)
