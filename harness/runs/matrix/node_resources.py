"""Matches the needs of a cell with the resources of a cluster's nodes, by the cluster's names."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from harness.matrices.schema import MachineNeeds

ACCELERATOR_PREFIX = "accelerator_type:"
TOLERANCE = 1e-6  # amounts that differ by less are equal


class RayResources(msgspec.Struct, frozen=True):
    """The resources of a cell beside CPUs and GPUs."""

    resources: dict[str, float]
    accelerator: str | None


def to_ray_resources(needs: MachineNeeds, nodes: Sequence[dict[str, float]]) -> RayResources:
    """Convert needs: a kind of GPU is a node's accelerator type, else a custom resource."""
    resources = {_resolve_name(name, nodes): count for name, count in needs.custom.items()}
    if not needs.gpu:
        return RayResources(resources, None)
    kind = _resolve_name(ACCELERATOR_PREFIX + needs.gpu, nodes)
    if any(kind in node for node in nodes):
        return RayResources(resources, kind.removeprefix(ACCELERATOR_PREFIX))
    resources[_resolve_name(needs.gpu, nodes)] = needs.gpus or 1.0
    return RayResources(resources, None)


def describe_shortage(needs: MachineNeeds, nodes: Sequence[dict[str, float]]) -> str:
    """Describe the resources that no single node has; '' if one node has all."""
    if count_fitting_cells(needs, nodes):
        return ""
    amounts = _list_amounts(needs, nodes)
    missing = [
        f"{name.removeprefix(ACCELERATOR_PREFIX)} ({count:g} needed, {most:g} at most)"
        for name, count in amounts.items()
        if (most := max((node.get(name, 0.0) for node in nodes), default=0.0)) < count - TOLERANCE
    ]
    if missing:
        return f"no node has {', '.join(missing)}"
    together = ", ".join(f"{count:g} {name}" for name, count in amounts.items())
    return f"no node has all of {together}"


def count_fitting_cells(needs: MachineNeeds, nodes: Sequence[dict[str, float]]) -> int:
    """Count the cells with these needs that the nodes can run at the same time."""
    amounts = _list_amounts(needs, nodes)
    total = 0
    for node in nodes:
        fits = [
            int((node.get(name, 0.0) + TOLERANCE) // count)
            for name, count in amounts.items()
            if count > 0
        ]
        total += min(fits, default=1)
    return total


def _list_amounts(needs: MachineNeeds, nodes: Sequence[dict[str, float]]) -> dict[str, float]:
    custom = to_ray_resources(needs, nodes)
    amounts = {"CPU": needs.cpus, "GPU": needs.gpus, **custom.resources}
    if custom.accelerator:
        # A node has one unit of it, however many GPUs it has; Ray takes a thousandth for a task.
        amounts[ACCELERATOR_PREFIX + custom.accelerator] = 0.001
    return {name: count for name, count in amounts.items() if count}


def _resolve_name(requested: str, nodes: Sequence[dict[str, float]]) -> str:
    """Resolve a name to the cluster's spelling."""
    for node in nodes:
        if requested in node:
            return requested
    known = {name.lower(): name for node in nodes for name in node}
    return known.get(requested.lower(), requested)
