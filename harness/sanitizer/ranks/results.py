"""What a collective gives each member, from what all members brought: on the CPU, in rank order.

Sums begin with rank 0's part and add the others in their order (or begin with the last rank's, on
demand), each rounded to the tensors' type: so every rank gets the same bits, in every run.

    compute_results(ALL_REDUCE, "sum", 0, [[a], [b]])     # [[a + b], [a + b]]
    compute_results(ALL_TO_ALL, "", 0, [[a, b], [c, d]])  # [[a, c], [b, d]]
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch

from harness.sanitizer.ranks.messages import IN_ORDER, REVERSED, Collective

Tensors = list[torch.Tensor]
Inputs = Sequence[Tensors]  # by member

OPERATIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "avg": torch.add,
    "product": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}


def reduce_parts(operation: str, parts: Tensors) -> torch.Tensor:
    result = functools.reduce(OPERATIONS[operation], parts)
    return result / len(parts) if operation == "avg" else result


def compute_results(
    collective: Collective, operation: str, root: int, inputs: Inputs, order: str = IN_ORDER
) -> list[Tensors]:
    """Return what each member gets; `root` is a place in the group, `order` is of sums."""
    count = len(inputs)
    columns = list(zip(*inputs, strict=True)) if collective in _BY_COLUMN else []
    if order == REVERSED and collective in REDUCTIONS:
        columns = [column[::-1] for column in columns]
    match collective:
        case Collective.ALL_REDUCE:
            return [[reduce_parts(operation, list(column)) for column in columns]] * count
        case Collective.REDUCE:
            sums = [reduce_parts(operation, list(column)) for column in columns]
            return [sums if place == root else [] for place in range(count)]
        case Collective.REDUCE_SCATTER:
            return [[reduce_parts(operation, list(column))] for column in columns]
        case Collective.ALL_TO_ALL:
            return [list(column) for column in columns]
        case Collective.ALL_GATHER:
            return [[tensor for tensors in inputs for tensor in tensors]] * count
        case Collective.GATHER:
            gathered = [tensor for tensors in inputs for tensor in tensors]
            return [gathered if place == root else [] for place in range(count)]
        case Collective.SCATTER:
            return [[inputs[root][place]] for place in range(count)]
        case Collective.BROADCAST:
            return [inputs[root]] * count
        case _:
            return [[] for _ in range(count)]


_BY_COLUMN = (
    Collective.ALL_REDUCE,
    Collective.REDUCE,
    Collective.REDUCE_SCATTER,
    Collective.ALL_TO_ALL,
)
REDUCTIONS = (Collective.ALL_REDUCE, Collective.REDUCE, Collective.REDUCE_SCATTER)
