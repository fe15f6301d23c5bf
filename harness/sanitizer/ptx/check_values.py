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

from harness.sanitizer.ptx.instrumented_kernel import (
    MAX_RACE_GROUPS,
    UNBOUNDED,
    InstrumentedKernel,
    RaceGroup,
    empty_bit,
)
from harness.sanitizer.ptx.launch import Allocation

OTHER_WIDTHS = "races: of pointers into the same memory whose accesses have other widths"
_SMALLEST_ADDRESS = 1 << 16
_DEVICE_ADDRESSES = range((1 << 32) + 1, 1 << 47)


@dataclass(frozen=True, slots=True)
class CheckedParameters:
    """The bytes of the extra parameter, and the memory that each pointer belongs to."""

    data: bytes
    targets: dict[int, Allocation]  # by the pointer's offset among the parameters
    unbounded_roots: tuple[tuple[int, ...], ...]
    skipped_checks: tuple[str, ...]  # the reasons


def find_targets(
    roots: Iterable[int],
    parameters: bytes,
    allocations: Sequence[Allocation],
    find_allocation: Callable[[int], Allocation | None],
) -> dict[int, Allocation]:
    """Find the memory that each pointer belongs to, by the pointers' offsets in the parameters.

    Host code may move a pointer before it passes it on, even out of its tensor. Example: `rope.cuh`
    passes `k - heads * stride`, which is `q` if both are views of one tensor. So if no parameter
    points at the start of some tensor of the call, a pointer that points at no start, or at one
    that an earlier one points at, may be that tensor's: it has no memory here.
    """
    values = struct.unpack_from(f"<{len(parameters) // 8}Q", parameters)
    starts = {allocation.base for allocation in allocations if allocation.size}
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
    at_start = [allocation for allocation in allocations if allocation.base == value]
    if at_start:
        return max(at_start, key=lambda allocation: allocation.size)
    around = [allocation for allocation in allocations if allocation.base <= value < allocation.end]
    if around:
        return min(around, key=lambda allocation: allocation.size)
    if value in _DEVICE_ADDRESSES:
        known = find_allocation(value)
        if known is not None:
            return known
    return next((allocation for allocation in allocations if allocation.end == value), None)


def make_checked_parameters(
    kernel: InstrumentedKernel,
    parameters: bytes,
    allocations: Sequence[Allocation],
    find_allocation: Callable[[int], Allocation | None],
    table: int,
    launch_number: int,
    whole_storages: bool = False,
    shadow: tuple[int, int] | None = None,
    is_from_empty: Callable[[Allocation], bool] = lambda _: False,
) -> CheckedParameters:
    """`whole_storages`: a pointer may reach to the end of its tensor's storage.

    `shadow`: the addresses of the launch's number and of the tables; None without race checks.
    `is_from_empty`: whether memory is from `torch.empty`, so that poison in it is no value.
    """
    listed = [site.roots for site in kernel.sites] + [group.roots for group in kernel.race_groups]
    roots = sorted({root for each in listed for root in each})
    targets = find_targets(roots, parameters, allocations, find_allocation)
    pointers = {
        root
        for root in roots
        if int.from_bytes(parameters[root : root + 8], "little") in _DEVICE_ADDRESSES
    }
    unknown = pointers - targets.keys()
    groups = _AliasedGroups(kernel.race_groups, targets) if shadow else None
    words = [table, launch_number, *(shadow or (0, 0)), groups.make_mask() if groups else 0]
    words.append(
        sum({empty_bit(root) for root, target in targets.items() if is_from_empty(target)})
    )
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
    skipped = (OTHER_WIDTHS,) if groups and groups.have_other_widths() else ()
    return CheckedParameters(data, targets, tuple(unbounded), skipped)


class _AliasedGroups:
    """The groups of a kernel whose accesses may go to the same memory in one launch.

    Groups of other pieces do not meet in the tables, so they are no reason for each other.
    """

    def __init__(self, groups: Sequence[RaceGroup], targets: dict[int, Allocation]) -> None:
        self._groups = groups
        self._spans = [
            [(targets[root].base, targets[root].end) for root in group.roots if root in targets]
            for group in groups
        ]

    def _list_overlapping(self, number: int) -> list[RaceGroup]:
        return [
            group
            for at, group in enumerate(self._groups)
            if at == number
            or any(
                max(first, start) < min(last, end)
                for first, last in self._spans[number]
                for start, end in self._spans[at]
            )
        ]

    def make_mask(self) -> int:
        """Return the bits of groups that count, and above them of written ones that are read."""
        mask = 0
        for number, group in enumerate(self._groups):
            others = [
                other for other in self._list_overlapping(number) if other.piece == group.piece
            ]
            bit = 1 << min(number, MAX_RACE_GROUPS - 1)
            if any("write" in other.verbs for other in others):
                mask |= bit
            if "write" in group.verbs and any("read" in other.verbs for other in others):
                mask |= bit << MAX_RACE_GROUPS
        return mask

    def have_other_widths(self) -> bool:
        """Return whether a group writes to memory that one of another piece reaches, too."""
        return any(
            "write" in group.verbs
            and any(other.piece != group.piece for other in self._list_overlapping(number))
            for number, group in enumerate(self._groups)
        )
