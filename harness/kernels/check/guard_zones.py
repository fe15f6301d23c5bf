"""Guard zones: tensors of a launch in copies of their own, with a pattern before and after each.

PyTorch's allocator lays tensors beside each other in one segment: a write past the end lands in
a neighbour and no tool sees it. Here it lands in the zone, and what is outside a fence is compared.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch

from harness.kernels.check.tracked_memory import AccessRule, ProgramId, TrackedStorage
from harness.kernels.check.violations import AccessRuleViolation, OutOfBounds, UncheckableKernel

ZONE_BYTES = 1 << 16
ZONE_PATTERN = 0xA5
MAX_COPY_BYTES = 1 << 30  # a copy of more than that costs more than it shows


class GuardZoneCopies:
    """Copies of the storages of some tensors; `check` after the launch, then `take_back`."""

    def __init__(self) -> None:
        self._copies: dict[int, tuple[torch.Tensor, torch.Tensor, str]] = {}
        self._before: dict[int, torch.Tensor] = {}
        self.names_without_zones: list[str] = []

    def copy_tensor(self, tensor: torch.Tensor, name: str, keep_original: bool) -> torch.Tensor:
        """The tensor, in a copy with zones; itself where it is empty or too large to copy."""
        size = tensor.untyped_storage().nbytes()
        if size > MAX_COPY_BYTES:
            if keep_original:
                raise UncheckableKernel(
                    f"{name} has {size} bytes: too many to hold against a fence"
                )
            self.names_without_zones.append(name)
            return tensor
        if not size:
            return tensor
        key = tensor.untyped_storage().data_ptr()
        if key not in self._copies:
            own = _bytes_of(tensor)
            held = torch.full(
                (ZONE_BYTES + size + ZONE_BYTES,),
                ZONE_PATTERN,
                dtype=torch.uint8,
                device=own.device,
            )
            held[ZONE_BYTES : ZONE_BYTES + size] = own
            self._copies[key] = (own, held, name)
        if keep_original:
            self._before.setdefault(key, self._copies[key][0].clone())
        held = self._copies[key][1]
        moved = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        offset = ZONE_BYTES // tensor.element_size() + tensor.storage_offset()
        return moved.set_(held.untyped_storage(), offset, tensor.shape, tensor.stride())

    def check_zones(self, kernel: str) -> None:
        for _, held, name in self._copies.values():
            for zone, where in (
                (held[:ZONE_BYTES], "before the start"),
                (held[-ZONE_BYTES:], "past the end"),
            ):
                touched = (zone != ZONE_PATTERN).nonzero().flatten()
                if len(touched):
                    past = where == "past the end"
                    near = int(touched[0]) if past else ZONE_BYTES - 1 - int(touched[-1])
                    raise OutOfBounds(
                        f"{kernel} wrote {where} of {name}",
                        details=(f"{len(touched)} bytes changed, the nearest {near} bytes away",),
                    )

    def check_access_rule(
        self, kernel: str, rule: AccessRule, storage: TrackedStorage, programs: Iterable[ProgramId]
    ) -> None:
        """Nothing outside what all programs together may write has changed."""
        key = storage.start
        if rule.write is None or key not in self._before:
            return
        allowed = rule.compute_union_mask(storage, (rule.write(program) for program in programs))
        _, held, name = self._copies[key]
        before = self._before[key]
        changed = held[ZONE_BYTES : ZONE_BYTES + storage.size] != before
        crossed = (changed & (allowed.to(changed.device) == 0)).nonzero().flatten()
        if len(crossed):
            element = int(crossed[0]) // rule.tensor.element_size()
            raise AccessRuleViolation(
                f"{kernel} wrote element {element} of {name}'s storage, "
                "outside of what its programs may write",
                details=(f"{len(crossed)} bytes changed outside the fence",),
            )

    def copy_back(self) -> None:
        for own, held, _ in self._copies.values():
            own.copy_(held[ZONE_BYTES : ZONE_BYTES + len(own)])


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(
        storage, 0, (storage.nbytes(),), (1,)
    )


def replace_tensors(value: Any, replace: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A value with its tensors exchanged, in tuples and lists too."""
    if isinstance(value, torch.Tensor):
        return replace(value)
    if isinstance(value, (list, tuple)):
        parts = [replace_tensors(part, replace) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, dict):
        return {name: replace_tensors(part, replace) for name, part in value.items()}
    if isinstance(getattr(value, "base", None), torch.Tensor):  # reinterpreted, or a descriptor
        other = copy.copy(value)
        other.base = replace(value.base)
        return other
    return value
