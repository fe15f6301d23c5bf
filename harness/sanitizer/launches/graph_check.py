"""`graphs`: what a captured launch keeps has to be true for as long as the graph can be replayed.

Invariant: an address that a captured launch was given belongs to a living allocation, or to the
graph's own pool (`pool_check` asks who wrote there). A tensor of another pool stays, freed or not,
until its own graph is gone or its bytes are given to a later one. An allocation that goes is
remembered, and reported with the next event if the graph is still there then: a program that drops
a graph with its buffers, in whatever order, is right. Example: a buffer grows,
`self.buffer = torch.empty(2 * n)`, and the old one was captured:

    scale: x is freed, and a captured graph still reads it
      model.py:12  y.copy_(x * 2)
      x float32 [8]; captured at model.py:12 in forward < …
      allocated at model.py:4 in __init__ < …
      freed at model.py:30 in grow < …
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

from harness.sanitizer.launches import host_values
from harness.sanitizer.launches.call_stacks import CallStack, format_stack, locate_launch
from harness.sanitizer.launches.device_memory import (
    DeviceAllocation,
    GraphPool,
    MemoryAccess,
    ReplayableGraph,
)
from harness.sanitizer.launches.host_values import CapturedNumber
from harness.sanitizer.launches.pool_check import PoolCheck
from harness.sanitizer.violations.exceptions import StaleGraphAddress, StaleGraphNumber, Violation


class GraphCheck:
    def __init__(self, report: Callable[[Violation], None]) -> None:
        self._report = report
        self._graphs: dict[int, ReplayableGraph] = {}  # by the id of the graph
        self._freed: list[DeviceAllocation] = []  # captured, and not yet reported
        self._kept: list[DeviceAllocation] = []  # freed in another pool, whose graph keeps them
        self._stale: list[DeviceAllocation] = []  # reported
        self._allocated: list[DeviceAllocation] = []  # since
        self._reported: set[tuple[Any, ...]] = set()
        self._pool_check = PoolCheck(report)
        self.captures = self.replays = 0

    # Events

    def begin_capture(self, graph: Any, pool: GraphPool) -> ReplayableGraph:
        key = id(graph)
        captured = ReplayableGraph(weakref.ref(graph, lambda _: self._graphs.pop(key, None)), pool)
        pool.add_graph(captured)
        self._graphs[key] = captured
        return captured

    def end_capture(self, captured: ReplayableGraph) -> None:
        captured.is_captured = True
        self.captures += 1

    def reset(self, graph: Any) -> None:
        captured = self._graphs.pop(id(graph), None)
        if captured is not None:
            captured.is_captured = False

    def add_launch(
        self, captured: ReplayableGraph, accesses: list[MemoryAccess], values: list[CapturedNumber]
    ) -> None:
        captured.launches += 1
        captured.values += values
        for access in accesses:
            if captured.owns(access.allocation):
                captured.add_pool_access(access)
                continue
            captured.accesses.append(access)
            access.allocation.is_captured = True
            for target in access.allocation.targets:
                target.is_captured |= not captured.owns(target)

    def check_launch(self, accesses: list[MemoryAccess]) -> None:
        """Check a launch that is not captured."""
        self._pool_check.check_launch(accesses)

    def free(self, allocation: DeviceAllocation) -> None:
        """Remember a captured allocation that is gone; this may run inside the collector."""
        if allocation.is_captured:
            (self._kept if allocation.in_graph_pool else self._freed).append(allocation)

    def replay(self, graph: Any, stack: CallStack) -> ReplayableGraph | None:
        """Check a graph that is about to be replayed."""
        self.replays += 1
        captured = self._graphs.get(id(graph))
        if captured is None:
            return None
        self.confirm()
        for value in captured.values:
            self._check_value(value, stack)
        self._pool_check.check_replay(captured, stack)
        return captured

    def allocate(self, allocation: DeviceAllocation) -> None:
        """Remember an allocation that may have got a graph's freed memory."""
        if self._freed or self._stale or self._kept:
            self._allocated.append(allocation)

    # Reports

    def confirm(self) -> None:
        """Report the freed allocations whose graph is still there, and who has their memory."""
        self._move_lost()
        self._confirm_freed()
        allocated, self._allocated = self._allocated, []
        for allocation in allocated:
            for known in (self._stale, self._kept):
                for stale in [one for one in known if one.overlaps(allocation)]:
                    known.remove(stale)
                    if uses := self._find_uses(stale):
                        where = format_stack(allocation.allocated_at)
                        self._report_address(stale, uses, f"reused at {where}")

    def _move_lost(self) -> None:
        """Count what was freed in a pool as gone once the graph that allocated it is gone."""
        for allocation in list(self._kept):
            if allocation.capture is None or not allocation.capture.can_be_replayed:
                self._kept.remove(allocation)
                self._freed.append(allocation)

    def _confirm_freed(self) -> None:
        if not self._freed:
            return
        if not any(self._find_uses(one) for one in self._freed):
            self._freed.clear()
            return
        gc.collect()  # a graph that nothing reaches is as good as gone
        freed, self._freed = self._freed, []
        for allocation in freed:
            if uses := self._find_uses(allocation):
                self._stale.append(allocation)
                self._report_address(allocation, uses)

    def _find_uses(self, allocation: DeviceAllocation) -> list[MemoryAccess]:
        return [
            access
            for captured in list(self._graphs.values())
            if captured.can_be_replayed and not captured.owns(allocation)
            for access in captured.accesses
            if access.allocation is allocation or allocation in access.allocation.targets
        ]

    def _report_address(
        self, allocation: DeviceAllocation, uses: list[MemoryAccess], reuse: str = ""
    ) -> None:
        first = uses[0]
        launch = first.launch
        is_target = first.allocation is not allocation
        key = (launch.name, launch.stack[:1], first.argument, is_target, bool(reuse))
        if key in self._reported:
            return
        self._reported.add(key)
        tensor = first.tensor()
        has_moved = (
            not is_target and tensor is not None and tensor.untyped_storage().data_ptr()
            not in (0, allocation.start)
        )  # fmt: skip
        what = f"a tensor whose address is in {first.argument}" if is_target else first.argument
        fate = "was given away" if reuse else "has moved" if has_moved else "is freed"
        others = len({id(use.launch) for use in uses}) - 1
        details = [
            f"{first.argument} {first.description}; captured at {format_stack(launch.stack)}",
            f"allocated at {format_stack(allocation.allocated_at)}",
            f"freed at {format_stack(allocation.freed_at or ())}",
        ]
        details += [reuse] if reuse else []
        if has_moved:
            details.append(f"the tensor is at {tensor.data_ptr():#x} now")
        if others:
            details.append(f"{others} more captured launches use this memory")
        self._report(
            StaleGraphAddress(
                f"{launch.name}: {what} {fate}, and a captured graph still "
                f"{'uses' if is_target else first.verb} it",
                locate_launch(launch.name, launch.stack),
                tuple(details),
            )
        )

    def _check_value(self, value: CapturedNumber, stack: CallStack) -> None:
        now = value.read()
        if now is host_values.GONE or now == value.captured:
            return
        key = (value.launch.name, value.expression, value.launch.stack[:1])
        if key in self._reported:
            return
        self._reported.add(key)
        name = value.launch.name
        self._report(
            StaleGraphNumber(
                f"{name}: a captured graph keeps {value.expression} = {value.captured!r}, "
                f"and it is {now!r} at the replay",
                locate_launch(name, value.launch.stack),
                (
                    f"captured at {format_stack(value.launch.stack)}",
                    f"replayed at {format_stack(stack)}",
                ),
            )
        )
