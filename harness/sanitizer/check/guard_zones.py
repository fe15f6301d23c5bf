"""Guard zones (red zones): copies of a launch's tensors, with a known pattern around each.

PyTorch's allocator puts tensors beside each other in one segment, so a write past the end of one
changes its neighbour and no tool sees it. Here it changes the 65,536 bytes of pattern behind the
copy. Elements that the access rules exclude are compared with their values before the launch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch

from harness.sanitizer.check.tracked_memory import AccessRule, ProgramId, TrackedStorage
from harness.sanitizer.violations.exceptions import (
    AccessRuleViolation,
    OutOfBounds,
    UncheckableKernel,
)

ZONE_BYTES = 1 << 16
ZONE_PATTERN = 0xA5
MAX_COPY_BYTES = 1 << 30  # larger copies take too long


class GuardZoneCopies:
    """Copies of some tensors' storages: launch on them, `check_zones`, then `copy_back`."""

    def __init__(self) -> None:
        self._copies: dict[int, tuple[torch.Tensor, torch.Tensor, str]] = {}
        self._before: dict[int, torch.Tensor] = {}
        self.names_without_zones: list[str] = []

    def copy_tensor(self, tensor: torch.Tensor, name: str, keep_original: bool) -> torch.Tensor:
        """Return the tensor in a copy with zones; an empty or too large tensor as it is."""
        size = tensor.untyped_storage().nbytes()
        if size > MAX_COPY_BYTES:
            if keep_original:
                raise UncheckableKernel(f"{name} has {size} bytes: too many for an access rule")
            self.names_without_zones.append(name)
            return tensor
        if not size:
            return tensor
        key = tensor.untyped_storage().data_ptr()
        if key not in self._copies:
            original = _bytes_of(tensor)
            padded = torch.full(
                (ZONE_BYTES + size + ZONE_BYTES,),
                ZONE_PATTERN,
                dtype=torch.uint8,
                device=original.device,
            )
            padded[ZONE_BYTES : ZONE_BYTES + size] = original
            self._copies[key] = (original, padded, name)
        if keep_original:
            self._before.setdefault(key, self._copies[key][0].clone())
        padded = self._copies[key][1]
        moved = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        offset = ZONE_BYTES // tensor.element_size() + tensor.storage_offset()
        return moved.set_(padded.untyped_storage(), offset, tensor.shape, tensor.stride())

    def check_zones(self, kernel: str) -> None:
        for _, padded, name in self._copies.values():
            for zone, where in (
                (padded[:ZONE_BYTES], "before the start"),
                (padded[-ZONE_BYTES:], "past the end"),
            ):
                touched = (zone != ZONE_PATTERN).nonzero().flatten()
                if len(touched):
                    is_past = where == "past the end"
                    near = int(touched[0]) if is_past else ZONE_BYTES - 1 - int(touched[-1])
                    raise OutOfBounds(
                        f"{kernel} wrote {where} of {name}",
                        details=(f"{len(touched)} bytes changed, the nearest {near} bytes away",),
                    )

    def check_access_rule(
        self, kernel: str, rule: AccessRule, storage: TrackedStorage, programs: Iterable[ProgramId]
    ) -> None:
        """Check that only elements that some program of the launch may write have changed."""
        key = storage.start
        if rule.write is None or key not in self._before:
            return
        allowed = rule.compute_union_mask(storage, (rule.write(program) for program in programs))
        _, padded, name = self._copies[key]
        before = self._before[key]
        changed = padded[ZONE_BYTES : ZONE_BYTES + storage.size] != before
        crossed = (changed & (allowed.to(changed.device) == 0)).nonzero().flatten()
        if len(crossed):
            element = int(crossed[0]) // rule.tensor.element_size()
            raise AccessRuleViolation(
                f"{kernel} wrote element {element} of {name}'s storage, "
                "outside of what its programs may write",
                details=(f"{len(crossed)} changed bytes that the access rule excludes",),
            )

    def copy_back(self) -> None:
        for original, padded, _ in self._copies.values():
            original.copy_(padded[ZONE_BYTES : ZONE_BYTES + len(original)])


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(
        storage, 0, (storage.nbytes(),), (1,)
    )


def replace_tensors(value: Any, replace: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a value with its tensors replaced, in tuples, lists, dicts and descriptors too."""
    if isinstance(value, torch.Tensor):
        return replace(value)
    if isinstance(value, (list, tuple)):
        items = [replace_tensors(item, replace) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {name: replace_tensors(item, replace) for name, item in value.items()}
    # A reinterpreted tensor, or a descriptor.
    if isinstance(getattr(value, "base", None), torch.Tensor):
        other = copy.copy(value)
        other.base = replace(value.base)
        return other
    return value
