"""Copies from the device to pinned memory, which a GPU makes while the host goes on.

Invariant: the host sees the values of an asynchronous copy once it has waited for the copy: for
its stream, a later event of it, or the device. Until then the memory holds poison, so a program
that reads before its event computes with garbage here each time, and not once in a thousand runs.

    host.copy_(device, non_blocking=True)  # host: 0x5a in every byte
    event.record(); event.synchronize()    # host: the values
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import torch

from harness.sanitizer.device import streams

POISON = 0x5A  # in every byte


@dataclass(frozen=True, slots=True, eq=False)
class _PendingCopy:
    target: torch.Tensor
    values: torch.Tensor
    stream: int
    count: int  # of the stream's launches, this copy included


_lock = threading.Lock()
_pending: list[_PendingCopy] = []


def copy_later(target: torch.Tensor, values: torch.Tensor, stream: streams.Stream) -> None:
    """Poison a host tensor, and write the values once this copy has been waited for."""
    count = stream.advance()
    _fill_with_poison(target)
    with _lock:
        _pending.append(_PendingCopy(target, values, stream.stream_id, count))


def deliver_copies(clock: streams.Clock) -> None:
    """Write the values of all copies that happened before a clock."""
    if not _pending:
        return
    with _lock:
        ended = [copy for copy in _pending if copy.count <= clock.get(copy.stream, 0)]
        if ended:
            _pending[:] = [copy for copy in _pending if copy not in ended]
    for copy in ended:
        copy.target.copy_(copy.values)


def _fill_with_poison(tensor: torch.Tensor) -> None:
    raw = torch.full((tensor.element_size(),), POISON, dtype=torch.uint8)
    if tensor.dtype != torch.bool:
        tensor.copy_(raw.view(tensor.dtype).expand(tensor.shape))
