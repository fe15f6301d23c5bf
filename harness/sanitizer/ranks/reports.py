"""What is wrong between ranks, in words: at the collective, with the lines of each rank."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import torch

from harness.sanitizer.ranks.messages import Call, Collective, TensorFacts
from harness.sanitizer.ranks.results import REDUCTIONS

MISMATCH, LOST = "CollectiveMismatch", "LostRank"  # names of exceptions


def describe_group(call: Call) -> str:
    return f"group {call.label} of ranks {', '.join(map(str, call.members))}"


def describe_call(call: Call) -> str:
    """Describe a call: 'all_reduce (sum) of float32 [4, 64] in group tp of ranks 0, 1'."""
    words = str(call.collective)
    if call.operation:
        words += f" ({call.operation})"
    if tensors := call.inputs or call.outputs:
        shown = ", ".join(map(str, tensors[:4])) + (" …" if len(tensors) > 4 else "")
        words += f" of {shown}" if call.inputs else f" into {shown}"
    if call.peer >= 0:
        words += {"send": " to", "recv": " from"}.get(call.collective, ", root") + f" {call.peer}"
    return f"{words} in {describe_group(call)}"


def describe_place(stack: Sequence[str]) -> str:
    return " < ".join(stack) or "an unknown line"


def describe_ranks(calls: Mapping[int, Call], others: Mapping[int, str]) -> tuple[str, ...]:
    """Give a line for each rank: where it waits, or what became of it."""
    lines = {
        rank: f"rank {rank} waits in {describe_call(call)}, at {describe_place(call.stack)}"
        for rank, call in calls.items()
    }
    lines |= {rank: f"rank {rank} {words}" for rank, words in others.items()}
    return tuple(lines[rank] for rank in sorted(lines))


def find_mismatch(calls: Mapping[int, Call]) -> str:
    """Return how the calls of one group's members do not belong together; '' if they do."""
    for (first, one), (second, other) in itertools.pairwise(sorted(calls.items())):
        pair = f"ranks {first} and {second}"
        if one.collective != other.collective:
            return f"{pair} call different collectives: {one.collective} and {other.collective}"
        if one.operation != other.operation:
            return (
                f"{pair} call {one.collective} with different operations: "
                f"{one.operation} and {other.operation}"
            )
        if one.peer != other.peer:
            return f"{pair} call {one.collective} with different roots: {one.peer} and {other.peer}"
        if one.collective in REDUCTIONS and one.inputs != other.inputs:
            return (
                f"{pair} call {one.collective} with different tensors: "
                f"{_list_facts(one.inputs)} and {_list_facts(other.inputs)}"
            )
        types = {one.dtype for call in (one, other) for one in (*call.inputs, *call.outputs)}
        if len(types) > 1:
            return f"{pair} call {one.collective} with different types: {', '.join(sorted(types))}"
        counts = len(one.inputs), len(other.inputs)
        if one.collective is Collective.ALL_TO_ALL and {*counts} != {len(one.members)}:
            return f"{pair} call {one.collective} with {counts[0]} and {counts[1]} parts"
    return ""


def find_unfitting_output(call: Call, rank: int, results: Sequence[torch.Tensor]) -> str:
    """Return how a rank's outputs are not of the size of what it gets; '' if they are."""
    given = [tensor.numel() for tensor in results]
    wanted = [count_elements(facts) for facts in call.outputs]
    if given == wanted:
        return ""
    return (
        f"rank {rank} calls {call.collective} with outputs of {_list_counts(wanted)} elements, "
        f"and the ranks give it {_list_counts(given)}"
    )


def count_elements(facts: TensorFacts) -> int:
    count = 1
    for side in facts.shape:
        count *= side
    return count


def _list_counts(counts: Sequence[int]) -> str:
    return ", ".join(map(str, counts)) or "no"


def _list_facts(facts: Sequence[TensorFacts]) -> str:
    return ", ".join(map(str, facts)) or "none"
