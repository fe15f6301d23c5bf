"""Guard zones: tensors of a launch in copies of their own, with a pattern before and after each.

PyTorch's allocator lays tensors beside each other in one segment: a write past the end lands in
a neighbour and no tool sees it. Here it lands in the zone, and what is outside a fence is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from harness.checking.memory import Fence, Program, Storage, as_bytes
from harness.checking.violations import FenceCrossed, OutOfBounds

ZONE = 1 << 16
PATTERN = 0xA5
LARGEST = 1 << 30  # a copy of more than that costs more than it shows


class Guarded:
    """Copies of the storages of some tensors; `check` after the launch, then `take_back`."""

    def __init__(self) -> None:
        self._copies: dict[int, tuple[torch.Tensor, torch.Tensor, str]] = {}
        self._before: dict[int, torch.Tensor] = {}

    def copy_of(self, tensor: torch.Tensor, name: str, keep: bool) -> torch.Tensor:
        """The tensor, in a copy with zones; itself where it is empty or too large to copy."""
        size = tensor.untyped_storage().nbytes()
        if not size or size > LARGEST:
            return tensor
        key = tensor.untyped_storage().data_ptr()
        if key not in self._copies:
            held = _bytes_of(tensor)
            copy = torch.full((ZONE + size + ZONE,), PATTERN, dtype=torch.uint8, device=held.device)
            copy[ZONE : ZONE + size] = held
            self._copies[key] = (held, copy, name)
        if keep:
            self._before.setdefault(key, self._copies[key][0].clone())
        copy = self._copies[key][1]
        moved = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        offset = ZONE // tensor.element_size() + tensor.storage_offset()
        return moved.set_(copy.untyped_storage(), offset, tensor.shape, tensor.stride())

    def check(self, kernel: str) -> None:
        for _, copy, name in self._copies.values():
            for zone, where in ((copy[:ZONE], "before the start"), (copy[-ZONE:], "past the end")):
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
        allowed = torch.zeros(storage.size, dtype=torch.uint8)
        for program in programs:
            index = fence.write(program)
            if index is not None:
                as_bytes(allowed, fence.tensor)[index] = 1
        _, copy, name = self._copies[key]
        before = self._before[key]
        changed = copy[ZONE : ZONE + storage.size] != before
        crossed = (changed & (allowed.to(changed.device) == 0)).nonzero().flatten()
        if len(crossed):
            element = int(crossed[0]) // fence.tensor.element_size()
            raise FenceCrossed(
                f"{kernel} wrote element {element} of {name}'s storage, "
                "outside of what its programs may write",
                details=(f"{len(crossed)} bytes changed outside the fence",),
            )

    def take_back(self) -> None:
        for held, copy, _ in self._copies.values():
            held.copy_(copy[ZONE : ZONE + len(held)])


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(
        storage, 0, (storage.nbytes(),), (1,)
    )


def moved(value: Any, move: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A value with its tensors exchanged, in tuples and lists too."""
    if isinstance(value, torch.Tensor):
        return move(value)
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(moved(part, move) for part in value)
    return value
