"""The tables a compiled kernel is given: what each pointer may reach, and the shadows beside it.

Shadows of who wrote and who read an element mean something for one launch only. So they share one
mapping, used again by each launch: numbers of earlier launches are too small to count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.utils._python_dispatch

from harness.checking.memory import Fence, Program, Span, Storage
from harness.checking.virtual import untouched
from harness.native.layout import Region
from harness.native.lowering import Lowered

_SHARED = 1 << 30  # bytes of address space; memory is what is touched
_NOTHING = (0,) * len(Region)
_ANYWHERE = (0, (1 << 63) - 1, 0, (1 << 63) - 1, *_NOTHING[4:])  # no shadows beside it


class Shadow:
    """Room for the numbers of a launch's programs, one for each element of what they touch."""

    def __init__(self) -> None:
        self._room = untouched(_SHARED)
        self._start = int(self._room.data_ptr())
        self._used = 0
        self._own: list[Any] = []

    def launch_starts(self) -> None:
        self._used = 0
        self._own.clear()

    def of(self, storage: Storage, granule: int) -> int:
        """The address of a number for each granule of the storage."""
        size = ((storage.size >> granule) + 2) * 8
        if size > _SHARED - self._used:
            room = untouched(size)
            self._own.append(room)
            return int(room.data_ptr())
        address = self._start + self._used
        self._used += size + -size % 64
        return address


class Shadows:
    """Who wrote and who read: apart, since their numbers are not written alike."""

    def __init__(self) -> None:
        self.writers, self.readers = Shadow(), Shadow()

    def launch_starts(self) -> None:
        self.writers.launch_starts()
        self.readers.launch_starts()


@dataclass(slots=True)
class Watch:
    """How a storage is used in one launch."""

    sizes: set[int] = field(default_factory=set)
    read: bool = False
    written: bool = False


class Tables:
    """The regions of one launch, for parameters and for everything that is known."""

    def __init__(
        self,
        lowered: Lowered,
        spans: Sequence[Span | None],
        known: Sequence[Storage] | None,
        programs: Sequence[Program] | range,
        shadows: Shadows,
        coordinates: Any,
    ) -> None:
        self._lowered, self._spans = lowered, spans
        self._programs, self._coordinates = programs, coordinates
        self._shadows = shadows
        self._alive: list[Any] = []  # arrays that the tables hold addresses of
        self._storages: dict[int, tuple[int, ...]] = {}
        self._watches = self._watched()
        self.parameters: list[int] = []
        for span in spans:
            self.parameters += _NOTHING if span is None else self._region(span)
        self.known = list(known or ()) if lowered.roams else []
        self.everything: list[int] = []
        if known is None:
            self.everything += _ANYWHERE
        for storage in self.known:
            self.everything += [storage.start, storage.end, *self._of(storage)]

    def _watched(self) -> dict[int, Watch]:
        """By storage: who shares one, and which elements are read and written in it."""
        watches: dict[int, Watch] = {}
        for place, span in enumerate(self._spans):
            if span is None:
                continue
            watch = watches.setdefault(span.storage.start, Watch())
            reads, writes = (
                sizes.get(place, ()) for sizes in (self._lowered.reads, self._lowered.writes)
            )
            watch.sizes |= {*reads, *writes}
            watch.read |= bool(reads)
            watch.written |= bool(writes)
        return watches

    def _region(self, span: Span) -> tuple[int, ...]:
        return (span.start, span.end, *self._of(span.storage))

    def _of(self, storage: Storage) -> tuple[int, ...]:
        """The fields that all regions of one storage share."""
        if storage.start not in self._storages:
            self._storages[storage.start] = self._made(storage)
        return self._storages[storage.start]

    def _made(self, storage: Storage) -> tuple[int, ...]:
        watch = self._watches.get(storage.start, Watch())
        roams = self._lowered.roams
        written, read = watch.written or roams, watch.read or roams
        granule = 0 if roams or not watch.sizes else min(watch.sizes).bit_length() - 1
        writers = readers = 0
        if written and len(self._programs) > 1:
            writers = self._shadows.writers.of(storage, granule)
            if read and not self._lowered.talks:
                readers = self._shadows.readers.of(storage, granule)
        unwritten = storage.unwritten
        return (
            storage.start,
            storage.size,
            0 if unwritten is None else unwritten.data_ptr(),
            writers,
            readers,
            granule,
            self._fences(storage, "read"),
            self._fences(storage, "write"),
        )

    def _fences(self, storage: Storage, kind: str) -> int:
        """The address of a mask's address for each program, 0 where anything goes."""
        fences = [fence for fence in storage.fences if _speaks(fence, kind)]
        if not fences:
            return 0
        with torch.utils._python_dispatch._disable_current_modes():
            programs = self._every()
            for fence in fences:
                fence.make(kind, programs, storage)
            masks = [self._mask(fences, kind, program, storage) for program in programs]
        table = np.array(masks, dtype=np.uint64)
        self._alive.append(table)
        return int(table.ctypes.data)

    def _every(self) -> Sequence[Program]:
        if isinstance(self._programs, range):
            return [self._coordinates(number) for number in self._programs]
        return self._programs

    def _mask(self, fences: list[Fence], kind: str, program: Program, storage: Storage) -> int:
        masks = [
            mask for fence in fences if (mask := fence.allowed(kind, program, storage)) is not None
        ]
        if not masks:
            return 0
        mask = masks[0]
        if len(masks) > 1:
            mask = np.bitwise_and.reduce(masks)
            self._alive.append(mask)
        return int(mask.ctypes.data)


def _speaks(fence: Fence, kind: str) -> bool:
    return (fence.write if kind == "write" else fence.read) is not None
