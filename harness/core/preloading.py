"""Make a process that imports much fast to import and to fork: a zygote.

Example: a worker imports SGLang once, in 10 s or so; `freeze_for_forks` and
`collapse_into_huge_pages` halve the time of each of its forks, which share the imports.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")

FORKS_TO_REPAY_COLLAPSE = 30  # forks
_RAISED_GC_THRESHOLDS = 20_000, 20, 20  # in place of 700 (2,000 from 3.13 on), 10, 10
_HUGE_PAGE_BYTES = 1 << 21  # bytes
_MADV_COLLAPSE = 25  # MADV_COLLAPSE: move small pages into huge pages, now


def with_large_stack(call: Callable[[], Result]) -> Result:
    """Call a function with enough of Python's frame stack allocated for all frames below.

    Python maps another chunk of the stack when one is full, and unmaps it when the frame that
    needed it returns. A loop at the end of a chunk would map and unmap at each of its calls.
    """
    return call()


# For a frame this large Python maps a megabyte; the frames below use the other half.
with_large_stack.__code__ = with_large_stack.__code__.replace(co_stacksize=1 << 16)


def raise_gc_thresholds() -> None:
    """Collect garbage seldom: most objects stay (syntax trees, graphs), so it frees little."""
    gc.set_threshold(*_RAISED_GC_THRESHOLDS)


def pause_gc_for_imports() -> None:
    """Disable collection until `freeze_for_forks`: imported objects are never freed."""
    gc.disable()


def freeze_for_forks() -> None:
    """End the imports: every object that exists now is shared by the forks and never collected."""
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        # torch's threads do not survive a fork, and a child would wait for them for ever.
        torch.set_num_threads(1)
    # A collection in a fork then skips the imported objects and copies none of their pages. Garbage
    # stays as well: a collection here takes longer than all forks together would save.
    gc.freeze()
    gc.enable()


def ignore_freezing() -> None:
    """Leave what the parent has frozen frozen in this fork, whatever a program does with `gc`.

    Example: SGLang freezes and unfreezes all objects around the capture of graphs; a collection
    behind it would go through everything that was imported, for half a second of a processor.
    """
    functions: Any = gc
    functions.freeze = functions.unfreeze = _leave_objects


def _leave_objects() -> None:
    """Stand for `gc.freeze` and `gc.unfreeze`, which change no result."""


def collapse_into_huge_pages() -> None:
    """Move this process's memory into huge pages, which halves the time of a fork.

    The move takes as long as `FORKS_TO_REPAY_COLLAPSE` forks. A kernel that cannot do it ignores
    the request.
    """
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    with open("/proc/self/maps") as maps:
        lines = [line.split() for line in maps]
    for addresses, rights, _, _, inode, *name in lines:
        if rights != "rw-p" or inode != "0" or name not in ([], ["[heap]"]):
            continue
        begin, end = (int(address, 16) for address in addresses.split("-"))
        begin, end = (
            -(-begin // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES,
            end // _HUGE_PAGE_BYTES * _HUGE_PAGE_BYTES,
        )
        if begin < end:
            libc.madvise(begin, end - begin, _MADV_COLLAPSE)
