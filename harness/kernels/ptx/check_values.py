"""The extra parameter of a launch of a kernel with checks: which memory each pointer may reach.

Invariant: a pointer that no tensor of the call and no known allocation explains is not bounded, and
all accesses that it may belong to count as unchecked. Example: `copy(out, source, n)` with tensors
of 96 bytes at 0x1000 and 0x2000, and accesses of 4 bytes: the entries are (0x1000, 93) and
(0x2000, 93).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from harness.kernels.ptx.instrumented_kernel import (
    MAX_RACE_GROUPS,
    UNBOUNDED,
    InstrumentedKernel,
    RaceGroup,
)
from harness.kernels.ptx.launch import Allocation

_SMALLEST_ADDRESS = 1 << 16
_DEVICE_ADDRESSES = range((1 << 32) + 1, 1 << 47)


@dataclass(frozen=True, slots=True)
class CheckedParameters:
    """The bytes of the extra parameter, and the memory that each pointer belongs to."""

    data: bytes
    targets: dict[int, Allocation]  # by the pointer's offset among the parameters
    unbounded_roots: tuple[tuple[int, ...], ...]


def read_pointers(parameters: bytes) -> list[int]:
    return list(struct.unpack_from(f"<{len(parameters) // 8}Q", parameters))


def find_targets(
    roots: Iterable[int],
    parameters: bytes,
    allocations: Sequence[Allocation],
    find_allocation: Callable[[int], Allocation | None],
) -> dict[int, Allocation]:
    """Find the memory that each pointer belongs to; the executor asks the same question.

    Host code may move a pointer out of its tensor before it passes it on (`LaunchMemory`). If some
    tensor of the call is nobody's, a pointer at no tensor's start has no memory here.
    """
    values = read_pointers(parameters)
    starts = {one.base for one in allocations if one.size}
    is_moved = not starts.issubset(values)
    found: dict[int, Allocation] = {}
    for root in roots:
        value = int.from_bytes(parameters[root : root + 8], "little")
        is_own = value in starts and value not in values[: root // 8]
        if value >= _SMALLEST_ADDRESS and (is_own or not is_moved):
            target = _find_target(value, allocations, find_allocation)
            if target is not None:
                found[root] = target
    return found


def _find_target(
    value: int,
    allocations: Sequence[Allocation],
    find_allocation: Callable[[int], Allocation | None],
) -> Allocation | None:
    """Find the tensor that starts at a pointer, else one around it, else one that ends there."""
    at_start = [one for one in allocations if one.base == value]
    if at_start:
        return max(at_start, key=lambda one: one.size)
    around = [one for one in allocations if one.base <= value < one.end]
    if around:
        return min(around, key=lambda one: one.size)
    if value in _DEVICE_ADDRESSES:
        known = find_allocation(value)
        if known is not None:
            return known
    return next((one for one in allocations if one.end == value), None)


def make_checked_parameters(
    kernel: InstrumentedKernel,
    parameters: bytes,
    allocations: Sequence[Allocation],
    find_allocation: Callable[[int], Allocation | None],
    table: int,
    launch_number: int,
    whole_storages: bool = False,
    shadow: tuple[int, int] | None = None,
) -> CheckedParameters:
    """`whole_storages`: a pointer may reach to the end of its tensor's storage.

    `shadow`: the addresses of the launch's number and of the tables; None without race checks.
    """
    listed = [one.roots for one in kernel.sites] + [one.roots for one in kernel.race_groups]
    roots = sorted({root for each in listed for root in each})
    targets = find_targets(roots, parameters, allocations, find_allocation)
    pointers = {
        root
        for root in roots
        if int.from_bytes(parameters[root : root + 8], "little") in _DEVICE_ADDRESSES
    }
    unknown = pointers - targets.keys()
    words = [table, launch_number, *(shadow or (0, 0))]
    words.append(_make_race_mask(kernel.race_groups, targets) if shadow else 0)
    unbounded: dict[tuple[int, ...], None] = {}
    for entry in kernel.entries:
        target = targets.get(entry.roots[entry.place])
        is_unbounded = targets.keys().isdisjoint(entry.roots) or not unknown.isdisjoint(entry.roots)
        if entry.place == 0 and is_unbounded:
            words += [0, UNBOUNDED]
            unbounded[entry.roots] = None
        elif target is not None:
            end = target.end
            if whole_storages and target.storage_size:
                end = max(end, target.storage_base + target.storage_size)
            words += [target.base, max(0, end - target.base - entry.size + 1)]
        else:
            words += [0, 0]
    data = struct.pack(f"<{len(words)}Q", *words)
    return CheckedParameters(data, targets, tuple(unbounded))


def _make_race_mask(groups: Sequence[RaceGroup], targets: dict[int, Allocation]) -> int:
    """Return the bits of the groups that count, and above them of written ones that are read.

    Groups of other pieces do not meet in the tables, so they are no reason for each other.
    """
    spans = [
        [(targets[root].base, targets[root].end) for root in group.roots if root in targets]
        for group in groups
    ]

    def overlaps(one: int, other: int) -> bool:
        return groups[one].piece == groups[other].piece and any(
            max(first, start) < min(last, end)
            for first, last in spans[one]
            for start, end in spans[other]
        )

    mask = 0
    for number, group in enumerate(groups):
        met = [at for at in range(len(groups)) if at == number or overlaps(number, at)]
        bit = 1 << min(number, MAX_RACE_GROUPS - 1)
        if any("write" in groups[at].verbs for at in met):
            mask |= bit
        if "write" in group.verbs and any("read" in groups[at].verbs for at in met):
            mask |= bit << MAX_RACE_GROUPS
    return mask
