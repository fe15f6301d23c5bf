"""What collectives read and write, by their call: those of c10d, and a package's own of NCCL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.sanitizer.launches.device_launch import ArgumentUse
from harness.sanitizer.launches.operator_effects import iterate_tensors


@dataclass(frozen=True, slots=True)
class CollectiveEffects:
    """Its tensors by position and name; `writes` are the positions that it writes."""

    tensors: tuple[str, ...]
    writes: tuple[int, ...]

    def list_uses(self, args: Sequence[Any], options: Mapping[str, Any]) -> list[ArgumentUse]:
        uses = []
        for place, name in enumerate(self.tensors):
            value = args[place] if place < len(args) else options.get(name)
            for inner, tensor in iterate_tensors(name, value):
                if tensor.is_cuda and tensor.numel():
                    uses.append(ArgumentUse(inner, tensor, writes=place in self.writes))
        return uses


_IN_PLACE = CollectiveEffects(("tensors",), (0,))
_READ = CollectiveEffects(("tensors",), ())
_TO_OUTPUT = CollectiveEffects(("output", "input"), (0,))

OPERATORS = {
    "c10d::allreduce_": _IN_PLACE,
    "c10d::allreduce_coalesced_": _IN_PLACE,
    "c10d::broadcast_": _IN_PLACE,
    "c10d::reduce_": _IN_PLACE,
    "c10d::recv_": _IN_PLACE,
    "c10d::send": _READ,
    "c10d::allgather_": _TO_OUTPUT,
    "c10d::_allgather_base_": _TO_OUTPUT,
    "c10d::allgather_into_tensor_coalesced_": _TO_OUTPUT,
    "c10d::reduce_scatter_": _TO_OUTPUT,
    "c10d::_reduce_scatter_base_": _TO_OUTPUT,
    "c10d::gather_": _TO_OUTPUT,
    "c10d::scatter_": _TO_OUTPUT,
    "c10d::alltoall_": _TO_OUTPUT,
    "c10d::alltoall_base_": _TO_OUTPUT,
}
