"""What a suite's fences allow each program of a launch, as lists that a GPU's kernels look in."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from harness.checking.launches import Launch
from harness.checking.memory import Memory, Program, Storage
from harness.checking.violations import CannotFollow
from harness.checking.zones import LARGEST
from harness.compiled import fences
from harness.compiled.pointers import Given

MOST = 1 << 20  # programs


class Lists:
    """A launch's lists on the device, for as long as this is held."""

    def __init__(self, launch: Launch, memory: Memory, device: str = "cuda") -> None:
        self._launch, self._device = launch, device
        self._storages = [storage for storage in memory.living() if storage.fences]
        self._table: Any = None
        self._known: dict[tuple[int, str], list[fences.Intervals] | None] = {}

    def __call__(self, pointers: Sequence[Given]) -> int | None:
        found = [self._storage(given) for given in pointers]
        if not any(found):
            return None
        with _disable_current_modes():
            lists = [
                (None, None) if one is None else (self._of(one, "read"), self._of(one, "write"))
                for one in found
            ]
            size = len(fences.table(lists, 0))
            self._table = torch.empty(size, dtype=torch.int64, device=self._device)
            address = int(self._table.data_ptr())
            self._table.copy_(torch.from_numpy(fences.table(lists, address)))
        return address

    def _storage(self, given: Given) -> Storage | None:
        here = (one for one in self._storages if one.start <= given.start < one.end)
        return next(here, None)

    def _of(self, storage: Storage, kind: str) -> list[fences.Intervals] | None:
        if (storage.start, kind) not in self._known:
            self._known[storage.start, kind] = self._lists(storage, kind)
        return self._known[storage.start, kind]

    def _lists(self, storage: Storage, kind: str) -> list[fences.Intervals] | None:
        """By program; None where no fence speaks of it."""
        rules = [fence.write if kind == "write" else fence.read for fence in storage.fences]
        if not any(rules):
            return None
        if self._launch.size >= MOST:
            raise CannotFollow(f"{self._launch}: too many programs to hold against a fence")
        if storage.size > LARGEST:
            words = f"{storage.name} has {storage.size} bytes"
            raise CannotFollow(f"{words}: too many to hold against a fence")
        x, y, z = map(range, self._launch.grid)
        programs = itertools.product(x, y, z)
        return [self._intervals(storage, kind, program) for program in programs]

    def _intervals(self, storage: Storage, kind: str, program: Program) -> fences.Intervals:
        masks = [
            fence.mask(storage, (rule(program),)).numpy()
            for fence in storage.fences
            if (rule := fence.write if kind == "write" else fence.read) is not None
        ]
        both = np.bitwise_and.reduce(masks)
        ends = np.flatnonzero(np.diff(both, prepend=0, append=0)) + storage.start
        if len(ends) > 2 * fences.LONGEST:
            raise CannotFollow(f"{self._launch}: a fence of more than {fences.LONGEST} pieces")
        return list(zip(ends[::2].tolist(), ends[1::2].tolist(), strict=True))
