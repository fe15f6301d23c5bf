"""What a graph's replay accesses, in parts: each ends where the graph records events.

CUDA makes the record of an event with `external=True` a step of the graph, which a replay does
again. A stream that waits for it is ordered behind what the graph did before that step, and not
behind the rest. So a server's decode graphs tell its scheduler that a request's slots were read.

Other events of a capture only order its streams. They are gone when it ends, or are recorded anew.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field, replace

from harness.sanitizer.device.streams import Event
from harness.sanitizer.launches.device_launch import DeviceLaunch
from harness.sanitizer.launches.device_memory import MemoryAccess


@dataclass(slots=True)
class CapturedPart:
    accesses: list[MemoryAccess] = field(default_factory=list)
    events: list[weakref.ref[Event]] = field(default_factory=list)  # recorded at its end

    def list_events(self) -> list[Event]:
        return [event for reference in self.events if (event := reference()) is not None]

    def forget_launches(self) -> None:
        """Forget that it ran: only a replay is ordered with other launches."""
        for access in self.accesses:
            access.allocation.accesses = [
                one for one in access.allocation.accesses if one.launch != access.launch
            ]

    def list_replayed(self, launch: DeviceLaunch) -> list[MemoryAccess]:
        return [
            replace(
                access,
                launch=replace(launch, name=f"{access.launch.name} of a replayed graph"),
            )
            for access in self.accesses
            if access.allocation.freed_at is None
        ]


def join_parts(parts: list[CapturedPart]) -> list[CapturedPart]:
    """Join the parts of a capture that has ended over events that are gone."""
    joined = [CapturedPart()]
    for part in parts:
        joined[-1].accesses += part.accesses
        if part.list_events():
            joined[-1].events += part.events
            joined.append(CapturedPart())
    if len(joined) > 1 and not joined[-1].accesses:
        joined.pop()
    for part in joined:
        part.accesses = _merge_accesses(part.accesses)
    return joined


def _merge_accesses(accesses: list[MemoryAccess]) -> list[MemoryAccess]:
    """Keep one access of each range, a write before a read."""
    merged: dict[tuple[int, int, int], MemoryAccess] = {}
    for access in accesses:
        key = id(access.allocation), access.start, access.end
        known = merged.get(key)
        if known is None or (access.writes, not access.partial) > (known.writes, not known.partial):
            merged[key] = access
    return list(merged.values())
