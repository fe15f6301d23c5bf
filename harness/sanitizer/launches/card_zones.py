"""The guard zones of a GPU: the rest of a block of PyTorch's allocator, behind a storage."""

from __future__ import annotations

from typing import Any

import torch

from harness.sanitizer.launches.zone_check import MAX_SITES

BLOCK_BYTES = 512  # the allocator's smallest block, and what each block is a multiple of
_make_storage: Any = torch._C._construct_storage_from_data_pointer


class CardZones:
    """Knows the storages that PyTorch's allocator made: behind others lies foreign memory.

    A storage of another maker may begin where a block does, and end before the block's tensor.
    """

    def __init__(self) -> None:
        self._starts: set[int] = set()

    def note_allocation(self, start: int) -> None:
        self._starts.add(start)

    def note_free(self, start: int) -> None:
        self._starts.discard(start)

    def find_zone(self, storage: torch.UntypedStorage) -> torch.Tensor | None:
        start, size = storage.data_ptr(), storage.nbytes()
        rest = -size % BLOCK_BYTES
        if not rest or start not in self._starts or not _is_own_block(storage):
            return None
        return _view_bytes(start + size, rest, storage.device)

    def allocate_results(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Allocate pinned memory, which has one address for the host and each device."""
        host = torch.empty(MAX_SITES, dtype=torch.int32, pin_memory=True)
        return host, _view_bytes(host.data_ptr(), 4 * MAX_SITES, device).view(torch.int32)


def _is_own_block(storage: torch.UntypedStorage) -> bool:
    """Return whether freeing a storage returns a block: PyTorch's allocator made it as a whole."""
    has_own_deleter: Any = torch._C._has_Standard_Deleter
    return bool(has_own_deleter(storage._cdata))


def _view_bytes(address: int, size: int, device: torch.device) -> torch.Tensor:
    """Return a tensor over memory that it does not own."""
    storage = _make_storage(address, device, size)
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage, 0, (size,), (1,))
