"""The checks of one access: a block of addresses, the lanes that are on, the origin.

The common case, every lane inside its tensor and nothing declared about it, costs a minimum and a
maximum; words are made only when something is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.checking.memory import Array, Fence, Memory, Program, Span, Storage
from harness.checking.violations import FenceCrossed, OutOfBounds, Place, Race, Unwritten, Wrapped


@dataclass(frozen=True, slots=True)
class Wrap:
    """Lanes of a value whose true value did not fit, and the first such operation in words."""

    lanes: Array
    operation: str
    place: Place


@dataclass(slots=True)
class Access:
    verb: str  # "read", "write" or "update"
    addresses: Array  # of the lanes that are on
    size: int  # bytes of one element
    origin: Span | None  # the argument that the pointer was made from
    values: Array | None = None  # the bits that a write puts there

    def only(self, lanes: Array) -> Access:
        values = None if self.values is None else self.values[lanes]
        return Access(self.verb, self.addresses[lanes], self.size, self.origin, values)

    @property
    def past_tense(self) -> str:
        return {"read": "read", "write": "wrote", "update": "updated"}[self.verb]


class Accesses:
    """Checks every access of the program that is running."""

    def __init__(
        self, memory: Memory, place: Callable[[], Place], peek: Callable[[Array, Any], Array]
    ) -> None:
        self._memory = memory
        self._place = place
        self._peek = peek  # what lies at some addresses now
        self.program: Program = (0, 0, 0)
        self._me = 0  # this program in this launch, never 0 and never used again
        self._launch = 0  # the smallest such number of this launch
        self._names: dict[int, Program] = {}

    def launch_starts(self) -> None:
        self._launch = self._me + 1
        self._names.clear()

    def program_starts(self, program: Program) -> None:
        self._me += 1
        self.program = program
        self._names[self._me] = program

    def check(self, access: Access, lanes: Array | None, wrap: Wrap | None = None) -> None:
        """Refuse what is not allowed; remember who wrote. Lanes that are off are not looked at."""
        shape = access.addresses.shape
        if wrap is not None:
            self._no_wrap(
                access.verb, wrap, np.broadcast_to(True if lanes is None else lanes, shape)
            )
        if lanes is not None and not lanes.all():
            access = access.only(np.broadcast_to(lanes, shape))
            if not access.addresses.size:
                return
        if access.origin is not None:
            self._within(access, access.origin)
            return
        for part, storage in self._by_storage(access):
            self._within(part, storage)

    def _by_storage(self, access: Access) -> Iterator[tuple[Access, Storage | None]]:
        """Pointers of no known origin (loaded from memory, mixed): each lane where it points."""
        while access.addresses.size:
            addresses = access.addresses
            storage = self._memory.living_at(int(addresses.flat[0]))
            if storage is None:
                yield access, None
                return
            inside = (addresses >= np.uint64(storage.start)) & (addresses < np.uint64(storage.end))
            yield access.only(inside), storage
            access = access.only(~inside)

    def _within(self, access: Access, target: Span | Storage | None) -> None:
        first, last = int(access.addresses.min()), int(access.addresses.max())
        if target is None or first < target.start or last + access.size > target.end:
            self._outside(access, target)
        assert target is not None
        storage = target.storage if isinstance(target, Span) else target
        if storage.fences:
            self._inside_fences(access, storage)
        if storage.unwritten_bytes is not None:
            self._note_writing(access, storage, storage.unwritten_bytes)
        if access.values is not None:
            self._note_store(access, access.values, storage)
        elif access.verb == "update":
            self._note_atomic(access, storage)

    def _no_wrap(self, verb: str, wrap: Wrap, lanes: Array) -> None:
        if (wrap.lanes & lanes).any():
            raise Wrapped(
                f"{wrap.place.kernel}: an integer wraps on its way into an address",
                wrap.place,
                (wrap.operation, f"{verb} through that address at {self._line()}"),
            )

    def _line(self) -> str:
        place = self._place()
        return f"{place.file}:{place.line}  {place.text}"

    # Out of bounds

    def _outside(self, access: Access, target: Span | Storage | None) -> None:
        start, end = (target.start, target.end) if target is not None else (0, 0)
        addresses = access.addresses.ravel()
        outside = (addresses < np.uint64(start)) | (addresses + np.uint64(access.size - 1) >= end)
        if target is None:
            outside[:] = True
        address = int(addresses[outside][0])
        place = self._place()
        many = int(outside.sum())
        what = f"{place.kernel} {access.past_tense} {self._where(access, target, address)}"
        details = [
            f"{many} of {addresses.size} lanes that are on" if addresses.size > 1 else "a scalar",
            self._neighbour(address, target),
        ]
        raise OutOfBounds(what, place, tuple(details))

    def _where(self, access: Access, target: Span | Storage | None, address: int) -> str:
        freed = self._memory.freed_at(address)
        if target is None:
            if freed is not None:
                return f"memory of {freed.name}, which was freed"
            return f"address {address:#x}, in no tensor that this launch was given"
        if address >= target.end:
            far = f"{address + access.size - target.end} bytes past the end of {target.name}"
        else:
            far = f"{target.start - address} bytes before the start of {target.name}"
        if isinstance(target, Storage):
            return far
        reached = (
            f"its index {target.index_of(address)}, and it is {target.kind} {list(target.shape)}"
        )
        return f"{far} ({reached})"

    def _neighbour(self, address: int, target: Span | Storage | None) -> str:
        living = self._memory.living_at(address)
        own = target.storage if isinstance(target, Span) else target
        if living is not None and living is own:
            return "still inside the storage that this tensor is a view of"
        if living is not None:
            return f"what lies there: {living.name}, {address - living.start} bytes into it"
        freed = self._memory.freed_at(address)
        if freed is not None:
            return f"what lay there: {freed.name}, freed"
        nearest = min(
            self._memory.living(),
            key=lambda storage: max(storage.start - address, address - storage.end),
            default=None,
        )
        if nearest is None:
            return "no tensor is near"
        return f"nearest tensor: {nearest.name}, {_distance(nearest, address)}"

    # Fences, and what nobody wrote

    def _inside_fences(self, access: Access, storage: Storage) -> None:
        kinds = {"read": ("read",), "write": ("write",), "update": ("read", "write")}[access.verb]
        offsets = (access.addresses - np.uint64(storage.start)).astype(np.int64).ravel()
        for fence in storage.fences:
            for kind in kinds:
                allowed = fence.allowed(kind, self.program, storage)
                if allowed is not None:
                    ends = np.minimum(offsets + access.size - 1, storage.size - 1)
                    beyond = (allowed[offsets] == 0) | (allowed[ends] == 0)
                    if beyond.any():
                        self._crossed(access, fence, storage, offsets[beyond])

    def _crossed(self, access: Access, fence: Fence, storage: Storage, offsets: Array) -> None:
        place = self._place()
        tensor = fence.tensor
        name = access.origin.name if access.origin is not None else storage.name
        where = offsets // tensor.element_size() - tensor.storage_offset()
        index = _unravelled(int(where[0]), tuple(tensor.shape), tuple(tensor.stride()))
        raise FenceCrossed(
            f"{place.kernel} {access.past_tense} {name}{list(index)}, outside of what program "
            f"{self.program} may {'read' if access.verb == 'read' else 'write'}",
            place,
            (f"{len(offsets)} elements of {name} {list(tensor.shape)}, outside the fence",),
        )

    def _note_writing(self, access: Access, storage: Storage, unwritten: Array) -> None:
        offsets = (access.addresses - np.uint64(storage.start)).astype(np.int64).ravel()
        if access.verb != "write":
            empty = unwritten[offsets] != 0
            if empty.any():
                self._read_nothing(access, storage, int(offsets[empty][0]), int(empty.sum()))
        if access.verb != "read":
            for byte in range(access.size):
                unwritten[offsets + byte] = 0

    def _read_nothing(self, access: Access, storage: Storage, offset: int, many: int) -> None:
        place = self._place()
        name, index = storage.name, f"byte {offset}"
        if access.origin is not None:
            name = access.origin.name
            index = f"index {access.origin.index_of(offset + storage.start)}"
        raise Unwritten(
            f"{place.kernel} {access.past_tense} {name} where nobody has written ({index})",
            place,
            (f"{many} of {access.addresses.size} lanes that are on",),
        )

    # Races

    def _note_store(self, access: Access, values: Array, storage: Storage) -> None:
        writers = storage.writers(access.size)
        slots = (access.addresses - np.uint64(storage.start)) // np.uint64(access.size)
        self._no_lane_against_lane(access, values, storage, slots)
        before = writers[slots]
        others = (before >= self._launch) & (before != self._me)
        self._not_beside_atomics(access, storage, before, before <= -self._launch)
        if others.any():
            again = access.only(others)
            differs = self._peek(again.addresses, values.dtype) != values[others]
            if differs.any():
                self._raced(again.only(differs), storage, int(before[others][differs][0]))
        writers[slots] = self._me

    def _note_atomic(self, access: Access, storage: Storage) -> None:
        """Atomics agree among themselves; beside another program's store they do not."""
        writers = storage.writers(access.size)
        slots = (access.addresses - np.uint64(storage.start)) // np.uint64(access.size)
        before = writers[slots]
        self._not_beside_atomics(access, storage, before, before >= self._launch)
        writers[slots] = -self._me

    def _not_beside_atomics(
        self, access: Access, storage: Storage, before: Array, wrong: Array
    ) -> None:
        wrong &= np.abs(before) != self._me
        if wrong.any():
            writer = abs(int(before[wrong][0]))
            self._raced(access.only(wrong), storage, writer, "store and update atomically")

    def _no_lane_against_lane(
        self, access: Access, values: Array, storage: Storage, slots: Array
    ) -> None:
        """Two lanes of one store with one address: which of them stays is nobody's to say."""
        if slots.size < 2:
            return
        flat, bits = slots.ravel(), values.ravel()
        order = np.argsort(flat, kind="stable")
        again = flat[order][1:] == flat[order][:-1]
        if again.any():
            clash = again & (bits[order][1:] != bits[order][:-1])
            if clash.any():
                lane = order[1:][clash][0]
                one = Access(
                    access.verb, access.addresses.ravel()[[lane]], access.size, access.origin
                )
                self._raced(one, storage, self._me)

    def _raced(
        self,
        access: Access,
        storage: Storage,
        writer: int,
        how: str = "write different values to",
    ) -> None:
        place, address = self._place(), int(access.addresses.ravel()[0])
        name, index = storage.name, (address - storage.start) // access.size
        if access.origin is not None:
            name, index = access.origin.name, access.origin.index_of(address)
        who = f"programs {self._names[writer]} and {self.program}"
        if writer == self._me:
            who = f"two lanes of program {self.program}"
        raise Race(f"{place.kernel}: {who} {how} {name}, index {index}, without an order", place)


def _distance(storage: Storage, address: int) -> str:
    if address >= storage.end:
        return f"which ends {address - storage.end} bytes before"
    return f"which starts {storage.start - address} bytes after"


def _unravelled(offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[Any, ...]:
    """An element's index from its distance to the first one, largest stride first."""
    index = [0] * len(shape)
    for axis in sorted(range(len(shape)), key=lambda axis: -strides[axis]):
        if strides[axis]:
            index[axis], offset = divmod(offset, strides[axis])
    return tuple(index)
