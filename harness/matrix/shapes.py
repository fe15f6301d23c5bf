"""What a cell needs, in a cluster's own words, and which of its nodes have that."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from harness.matrix.values import Needs

ACCELERATOR = "accelerator_type:"
PARTS = 1e-6  # less is no difference between two amounts


class Wanted(msgspec.Struct, frozen=True):
    """Beside CPUs and GPUs."""

    resources: dict[str, float]
    accelerator: str | None


def wanted(needs: Needs, nodes: Sequence[dict[str, float]]) -> Wanted:
    """A GPU's kind is an accelerator type where a node says so, or else a custom resource."""
    resources = {_name(name, nodes): count for name, count in needs.custom.items()}
    if not needs.gpu:
        return Wanted(resources, None)
    kind = _name(ACCELERATOR + needs.gpu, nodes)
    if any(kind in node for node in nodes):
        return Wanted(resources, kind.removeprefix(ACCELERATOR))
    resources[_name(needs.gpu, nodes)] = needs.gpus or 1.0
    return Wanted(resources, None)


def lacking(needs: Needs, nodes: Sequence[dict[str, float]]) -> str:
    """What no single node has, by name; '' if one has all of it."""
    if fitting(needs, nodes):
        return ""
    amounts = _amounts(needs, nodes)
    missing = [
        f"{name.removeprefix(ACCELERATOR)} ({count:g} needed, {most:g} at most)"
        for name, count in amounts.items()
        if (most := max((node.get(name, 0.0) for node in nodes), default=0.0)) < count - PARTS
    ]
    if missing:
        return f"no node has {', '.join(missing)}"
    together = ", ".join(f"{count:g} {name}" for name, count in amounts.items())
    return f"no node has all of {together}"


def fitting(needs: Needs, nodes: Sequence[dict[str, float]]) -> int:
    """How many such cells the nodes can run at the same time."""
    amounts = _amounts(needs, nodes)
    total = 0
    for node in nodes:
        fits = [
            int((node.get(name, 0.0) + PARTS) // count)
            for name, count in amounts.items()
            if count > 0
        ]
        total += min(fits, default=1)
    return total


def _amounts(needs: Needs, nodes: Sequence[dict[str, float]]) -> dict[str, float]:
    more = wanted(needs, nodes)
    amounts = {"CPU": needs.cpus, "GPU": needs.gpus, **more.resources}
    if more.accelerator:
        # Ray counts it as one of a node, however many GPUs there are: each cell takes a thousandth.
        amounts[ACCELERATOR + more.accelerator] = 0.001
    return {name: count for name, count in amounts.items() if count}


def _name(asked: str, nodes: Sequence[dict[str, float]]) -> str:
    """As the cluster spells it."""
    for node in nodes:
        if asked in node:
            return asked
    known = {name.lower(): name for node in nodes for name in node}
    return known.get(asked.lower(), asked)
