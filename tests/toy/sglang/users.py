"""Takes names over from another module, as real code does."""

from sglang.forms import LIMIT, below_limit, decorated, outer, plain
from sglang.forms import LIMIT as CEILING

MADE_EARLY = outer(5)


def use(rows, topk):
    return plain(rows, topk)


def limits():
    return LIMIT, CEILING


def is_below(value):
    return below_limit(value)


def call_decorated(value):
    return decorated(value)
