"""Where checked kernels leave their reports: records in the host's memory, tables on the device.

The host looks at one word, the bell, and reads records without a word to the device: neither a
stream nor a graph being captured notices, and what a lost device has told before it was lost is
there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from harness.compiled.known import KNOWN
from harness.compiled.reporting import (
    BLOCK_BYTES,
    RECORD_BYTES,
    RECORDS,
    SITES,
    Record,
)

KERNELS = 768
_RECORDS_BYTES = SITES * RECORDS * RECORD_BYTES
_SEEN = 2
_FIELDS = np.dtype(
    {
        "names": "written launch address word site x y z left right".split(),
        "formats": ["<u4", "<i8", "<u8", "<u4", "<u4", "<u4", "<u4", "<u4", "<i8", "<i8"],
        "offsets": [int(field) for field in Record],
        "itemsize": RECORD_BYTES,
    }
)


@dataclass(frozen=True, slots=True)
class Told:
    """One record."""

    launch: int
    address: int
    word: int
    site: int
    program: tuple[int, int, int]
    operands: tuple[int, int]  # of what wrapped, or where the pointer's memory is and its size + 1


class Arena:
    """The reports of one device. Made outside of a capture, once."""

    def __init__(self, device: int) -> None:
        self._bell = torch.zeros(16, dtype=torch.int32).pin_memory()
        self._records = torch.zeros(KERNELS * _RECORDS_BYTES, dtype=torch.uint8).pin_memory()
        blocks = np.zeros((KERNELS, BLOCK_BYTES // 8), dtype=np.int64)
        blocks[:, 0] = self._records.data_ptr() + np.arange(KERNELS) * _RECORDS_BYTES
        blocks[:, 1] = self._bell.data_ptr()
        self._memory = torch.from_numpy(KNOWN.table()).to(f"cuda:{device}")
        blocks[:, 2] = self._memory.data_ptr()
        self._shown = 0  # how many changes of what is known of memory
        self._blank = torch.from_numpy(blocks)
        self._blocks = self._blank.to(f"cuda:{device}")
        self._rung = self._bell.numpy()
        self._read = self._records.numpy().view(_FIELDS).reshape(KERNELS, SITES * RECORDS)
        self._taken = 0

    def block(self) -> int | None:
        """The address of a table for one more kernel; None where all are taken."""
        if self._taken == KERNELS:
            return None
        self._taken += 1
        return int(self._blocks.data_ptr()) + (self._taken - 1) * BLOCK_BYTES

    def show_memory(self) -> None:
        """Put on the device what is known of memory, in front of what is launched next."""
        if self._shown != KNOWN.changes:
            self._shown = KNOWN.changes
            self._memory.copy_(torch.from_numpy(KNOWN.table()), non_blocking=True)

    def rings(self) -> bool:
        return bool(self._rung[0])

    def told(self) -> list[Told]:
        """What was put down since the last time."""
        self._rung[0] = 0
        read = self._read[: self._taken]
        found = []
        for place in np.argwhere(read["written"] == 1):
            record = read[tuple(place)]
            program = (int(record["x"]), int(record["y"]), int(record["z"]))
            found.append(
                Told(
                    int(record["launch"]),
                    int(record["address"]),
                    int(record["word"]),
                    int(record["site"]),
                    program,
                    (int(record["left"]), int(record["right"])),
                )
            )
            read["written"][tuple(place)] = _SEEN
        return found

    def forget(self) -> None:
        """Count from nothing again. Whoever asks has waited for the device."""
        self._read["written"] = 0
        self._blocks.copy_(self._blank)
