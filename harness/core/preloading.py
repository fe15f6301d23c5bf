"""A process that imports a lot once, made quick to import and to fork: its forks have it all."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")

FORKS_TO_REPAY_COLLAPSE = 30  # forks
_RAISED_GC_THRESHOLDS = 20_000, 20, 20  # in place of 700 (2,000 from 3.13 on), 10, 10
_HUGE_PAGE_BYTES = 1 << 21  # bytes of a large page
_MADV_COLLAPSE = 25  # MADV_COLLAPSE: what lies in small pages goes into large ones, now


def with_large_stack(call: Callable[[], Result]) -> Result:
    """Call it with room on Python's stack for all frames below.

    Python maps a small piece of it when the last one is full, and unmaps it as the frame returns
    that needed it: without room, a loop that calls from the end of a piece does so at every turn.
    """
    return call()


# For a frame this large it maps a megabyte, of which the frames below have half.
with_large_stack.__code__ = with_large_stack.__code__.replace(co_stacksize=1 << 16)


def raise_gc_thresholds() -> None:
    """Most of what is made here stays (syntax, graphs, imports): who looks often finds nothing."""
    gc.set_threshold(*_RAISED_GC_THRESHOLDS)


def pause_gc_for_imports() -> None:
    """Until `settle`: what is imported stays, and a collector that looks at it finds nothing."""
    gc.disable()


def freeze_for_forks() -> None:
    """All is imported: what is here now is what forks share."""
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        # torch's own threads do not outlive a fork, and a child waits for them for ever.
        torch.set_num_threads(1)
    # A collection in a fork need not look at what is imported, nor copy its pages. What is garbage
    # by now stays as well: to look for it takes longer than all forks together save by its memory.
    gc.freeze()
    gc.enable()


def collapse_into_huge_pages() -> None:
    """Make each fork half as long, by a shorter page table, for what `MANY` of them take.

    Where the kernel cannot, they stay as they are.
    """
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    with open("/proc/self/maps") as maps:
        lines = [line.split() for line in maps]
    for place, rights, _, _, inode, *name in lines:
        if rights != "rw-p" or inode != "0" or name not in ([], ["[heap]"]):
            continue
        begin, end = (int(address, 16) for address in place.split("-"))
        begin, end = (
            -(-begin // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES,
            end // _HUGE_PAGE_BYTES * _HUGE_PAGE_BYTES,
        )
        if begin < end:
            libc.madvise(begin, end - begin, _MADV_COLLAPSE)
