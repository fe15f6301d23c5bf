"""Guard zones: tensors of a launch in copies of their own, with a pattern before and after each.

PyTorch's allocator lays tensors beside each other in one segment: a write past the end lands in
a neighbour and no tool sees it. Here it lands in the zone, and what is outside a fence is compared.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch

from harness.checking.memory import Fence, Program, Storage
from harness.checking.violations import CannotFollow, FenceCrossed, OutOfBounds

ZONE = 1 << 16
PATTERN = 0xA5
LARGEST = 1 << 30  # a copy of more than that costs more than it shows


class Guarded:
    """Copies of the storages of some tensors; `check` after the launch, then `take_back`."""

    def __init__(self) -> None:
        self._copies: dict[int, tuple[torch.Tensor, torch.Tensor, str]] = {}
        self._before: dict[int, torch.Tensor] = {}
        self.unguarded: list[str] = []

    def copy_of(self, tensor: torch.Tensor, name: str, keep: bool) -> torch.Tensor:
        """The tensor, in a copy with zones; itself where it is empty or too large to copy."""
        size = tensor.untyped_storage().nbytes()
        if size > LARGEST:
            if keep:
                raise CannotFollow(f"{name} has {size} bytes: too many to hold against a fence")
            self.unguarded.append(name)
            return tensor
        if not size:
            return tensor
        key = tensor.untyped_storage().data_ptr()
        if key not in self._copies:
            own = _bytes_of(tensor)
            held = torch.full((ZONE + size + ZONE,), PATTERN, dtype=torch.uint8, device=own.device)
            held[ZONE : ZONE + size] = own
            self._copies[key] = (own, held, name)
        if keep:
            self._before.setdefault(key, self._copies[key][0].clone())
        held = self._copies[key][1]
        moved = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        offset = ZONE // tensor.element_size() + tensor.storage_offset()
        return moved.set_(held.untyped_storage(), offset, tensor.shape, tensor.stride())

    def check(self, kernel: str) -> None:
        for _, held, name in self._copies.values():
            for zone, where in ((held[:ZONE], "before the start"), (held[-ZONE:], "past the end")):
                touched = (zone != PATTERN).nonzero().flatten()
                if len(touched):
                    past = where == "past the end"
                    near = int(touched[0]) if past else ZONE - 1 - int(touched[-1])
                    raise OutOfBounds(
                        f"{kernel} wrote {where} of {name}",
                        details=(f"{len(touched)} bytes changed, the nearest {near} bytes away",),
                    )

    def check_fence(
        self, kernel: str, fence: Fence, storage: Storage, programs: Iterable[Program]
    ) -> None:
        """Nothing outside what all programs together may write has changed."""
        key = storage.start
        if fence.write is None or key not in self._before:
            return
        allowed = fence.mask(storage, (fence.write(program) for program in programs))
        _, held, name = self._copies[key]
        before = self._before[key]
        changed = held[ZONE : ZONE + storage.size] != before
        crossed = (changed & (allowed.to(changed.device) == 0)).nonzero().flatten()
        if len(crossed):
            element = int(crossed[0]) // fence.tensor.element_size()
            raise FenceCrossed(
                f"{kernel} wrote element {element} of {name}'s storage, "
                "outside of what its programs may write",
                details=(f"{len(crossed)} bytes changed outside the fence",),
            )

    def take_back(self) -> None:
        for own, held, _ in self._copies.values():
            own.copy_(held[ZONE : ZONE + len(own)])


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(
        storage, 0, (storage.nbytes(),), (1,)
    )


def moved(value: Any, move: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A value with its tensors exchanged, in tuples and lists too."""
    if isinstance(value, torch.Tensor):
        return move(value)
    if isinstance(value, (list, tuple)):
        parts = [moved(part, move) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, dict):
        return {name: moved(part, move) for name, part in value.items()}
    if isinstance(getattr(value, "base", None), torch.Tensor):  # reinterpreted, or a descriptor
        other = copy.copy(value)
        other.base = move(value.base)
        return other
    return value
