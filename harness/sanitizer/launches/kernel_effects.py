"""What a Triton kernel reads and writes, from its graph: which pointers it loads and stores.

Example: in `tl.store(out + tl.load(index + lane), 1.0)` the kernel reads `index` and writes some
elements of `out`, since a loaded number decides which.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch

from harness.sanitizer.ir import flow
from harness.sanitizer.ir.graph import IROperation, IRValue, KernelGraph
from harness.sanitizer.ir.operations import ACCESS_OPERATIONS
from harness.sanitizer.launches.device_launch import ArgumentUse


@dataclass(frozen=True, slots=True)
class PointerEffects:
    """The effects of a kernel through each of its parameters, by position."""

    reads: frozenset[int]
    writes: frozenset[int]
    partial: frozenset[int]  # an address depends on a number that the kernel loads
    has_unknown: bool  # an access through a pointer that belongs to no single parameter


@dataclass(frozen=True, slots=True)
class KernelUses:
    uses: list[ArgumentUse]
    is_known: bool  # the kernel's IR says all that it accesses


def find_pointer_effects(graph: KernelGraph) -> PointerEffects:
    origins = flow.find_pointer_origins(graph)
    depends_on_memory = _find_loaded(graph)
    reads, writes, partial, has_unknown = set(), set(), set(), False
    for operation in graph.walk():
        if operation.name not in ACCESS_OPERATIONS:
            continue
        pointer = operation.operands[0]
        origin = origins.get(pointer)
        if origin is None:
            has_unknown = True
            continue
        if operation.name != "tt.store":
            reads.add(origin)
        if operation.name != "tt.load":
            writes.add(origin)
        if pointer in depends_on_memory or _has_loaded_mask(operation, depends_on_memory):
            partial.add(origin)
    return PointerEffects(frozenset(reads), frozenset(writes), frozenset(partial), has_unknown)


def _has_loaded_mask(operation: IROperation, loaded: set[IRValue]) -> bool:
    masks = (value for value in operation.operands[1:] if value.type.element == "i1")
    return any(value in loaded for value in masks)


def _find_loaded(graph: KernelGraph) -> set[IRValue]:
    """Find the values that depend on what the kernel loads."""
    sources = flow.map_control_flow_sources(graph)
    found: set[IRValue] = set()
    size = -1
    while size != len(found):
        size = len(found)
        for operation in graph.walk():
            is_loaded = operation.name == "tt.load" or operation.name.startswith("tt.atomic")
            if is_loaded or not found.isdisjoint(operation.operands):
                found.update(operation.results)
        found.update(target for target, values in sources.items() if not found.isdisjoint(values))
    return found


_CACHE_KEY = "effects by unfix"  # beside the compiled kernels, as changed source drops both


def list_kernel_uses(kernel: Any, args: tuple[Any, ...], options: dict[str, Any]) -> KernelUses:
    """Return how a launch uses its tensors; each form of a kernel is read once."""
    from harness.sanitizer.triton import frontend

    names = kernel.signature.parameters
    binder = frontend.get_binder(kernel)
    bound = binder.bind(args, {key: one for key, one in options.items() if key in names})
    arguments = list(bound.runtime_arguments())
    tensors = [getattr(one.value, "base", one.value) for one in arguments]
    effects = _get_effects(kernel, binder, bound)
    uses = []
    for place, (argument, tensor) in enumerate(zip(arguments, tensors, strict=True)):
        if not isinstance(tensor, torch.Tensor) or not tensor.is_cuda or not tensor.numel():
            continue
        if effects is None:
            uses.append(ArgumentUse(argument.name, tensor, writes=False, partial=True))
            continue
        partial = place in effects.partial
        if place in effects.reads:
            uses.append(ArgumentUse(argument.name, tensor, False, partial))
        if place in effects.writes:
            uses.append(ArgumentUse(argument.name, tensor, True, partial))
    return KernelUses(uses, effects is not None and not effects.has_unknown)


def _get_effects(kernel: Any, binder: Any, bound: Any) -> PointerEffects | None:
    """Return the effects of a call, or None if its IR cannot be read."""
    from harness.sanitizer.triton import graph_loader, specialization

    known = kernel.device_caches.setdefault(_CACHE_KEY, {})
    if bound.key not in known:
        effects = None
        if not any(str(one.type).startswith("tensordesc") for one in bound.runtime_arguments()):
            try:
                shared = specialization.specialize_call(kernel, binder, bound)
                effects = find_pointer_effects(graph_loader.load_graph(kernel, shared))
            except Exception as error:  # the launch goes on, and counts as one of unknown effects
                warnings.warn(
                    f"what {kernel.fn.__name__} accesses is not known: "
                    f"{type(error).__name__}: {error}",
                    stacklevel=2,
                )
        known[bound.key] = effects
    found: PointerEffects | None = known[bound.key]
    return found
