"""One launch as the checks see it: its stream, its arguments, and where the program was."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from harness.sanitizer.device.streams import Clock
from harness.sanitizer.launches.call_stacks import CallStack

Stream = int  # a stream's number


@dataclass(frozen=True, slots=True)
class ArgumentUse:
    """How a launch uses a tensor, before it is known which allocation that lies in.

    `partial`: it may access some elements alone (it computes indices from memory, or nothing says
    what it does). `updates`: it reads what it writes, as `add_` does. `follows_strides`: it
    accesses the tensor's elements alone, and all of them, whatever their strides.
    """

    name: str
    tensor: torch.Tensor
    writes: bool
    partial: bool = False
    updates: bool = False
    follows_strides: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class DeviceLaunch:
    name: str
    stream: Stream
    count: int  # of the stream's launches, this one included
    clock: Clock  # for each stream, how many of its launches happened before
    stack: CallStack

    def is_after(self, other: DeviceLaunch) -> bool:
        return other.stream == self.stream or self.clock.get(other.stream, 0) >= other.count


def format_stream(stream: Stream) -> str:
    return "0 (the default)" if stream <= 0 else f"{stream:#x}" if stream > 1 << 20 else str(stream)
