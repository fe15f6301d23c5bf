"""Reads of shared memory into which a thread's asynchronous copy may still be going.

A copy happens where it is issued; each 4 bytes of its target then have an entry: the block, the
thread and the group of the copy. A thread's frame counts the groups that it has committed and those
that it has waited for. A read before its thread's wait is a report; so is a read by another thread
that no barrier separates from the wait. Example: thread 3 issues a copy of group 2 and waits until
at most one group is in progress; with groups 1 and 2 committed, 1 is done, and 2 may not be read.
"""

from __future__ import annotations

from harness.sanitizer.checks.words import Mark
from harness.sanitizer.ptx.abi import ContextField, FrameField
from harness.sanitizer.ptx.llvm_code import PtxFunction
from harness.sanitizer.ptx.thread_code import ThreadCode

BLOCK_SHIFT, THREAD_SHIFT = 34, 24
_GROUP_MASK, _THREAD_MASK = (1 << 24) - 1, 1023
GRANULE_BITS = 2  # the smallest copy has 4 bytes


def build_copy_functions() -> str:
    """Build the function that enters a copy into the table."""
    code = PtxFunction(
        "define void @ptx_begin_copy(ptr %context, ptr %frame, i64 %address, i64 %size)"
    )
    table = code.get_context(ContextField.COPIES)
    with code.when(code.is_nonzero(table)):
        block = code.get_context(ContextField.BLOCK_ORDINAL)
        block = code.let(f"shl i64 {code.let(f'add i64 {block}, 1')}, {BLOCK_SHIFT}")
        thread = code.get_frame(FrameField.THREAD)
        thread = code.let(f"shl i64 {thread}, {THREAD_SHIFT}")
        group = code.let(f"add i64 {code.get_frame(FrameField.COPY_GROUPS)}, 1")
        entry = code.let(f"or i64 {code.let(f'or i64 {block}, {thread}')}, {group}")
        start = code.get_context(ContextField.SHARED)
        first = code.let(f"sub i64 %address, {start}")
        first = code.let(f"lshr i64 {first}, {GRANULE_BITS}")
        with code.loop(code.let(f"lshr i64 %size, {GRANULE_BITS}")) as step:
            place = code.let(f"add i64 {first}, {step}")
            code.store_element("i64", entry, code.to_pointer(table), place)
    code.emit("ret void")
    return str(code)


def emit_begin(code: ThreadCode, address: str, size: int) -> None:
    code.emit(f"call void @ptx_begin_copy(ptr %context, ptr %frame, i64 {address}, i64 {size})")


def emit_commit(code: ThreadCode) -> None:
    groups = code.get_frame(FrameField.COPY_GROUPS)
    code.set_frame(FrameField.COPY_GROUPS, code.let(f"add i64 {groups}, 1"))


def emit_wait(code: ThreadCode, in_progress: int) -> None:
    """Wait until at most `in_progress` of the thread's committed groups are in progress."""
    groups = code.get_frame(FrameField.COPY_GROUPS)
    done = code.let(f"sub i64 {groups}, {in_progress}")
    before = code.get_frame(FrameField.COPY_GROUPS_DONE)
    with code.when(code.let(f"icmp sgt i64 {done}, {before}")):
        epoch = code.get_context(ContextField.EPOCH)
        same = code.is_equal(code.get_frame(FrameField.COPY_EPOCH), epoch)
        ordered = code.get_frame(FrameField.COPY_GROUPS_ORDERED)
        ordered = code.let(f"select i1 {same}, i64 {ordered}, i64 {before}")
        code.set_frame(FrameField.COPY_GROUPS_ORDERED, ordered)
        code.set_frame(FrameField.COPY_GROUPS_DONE, done)
        code.set_frame(FrameField.COPY_EPOCH, epoch)
        code.set_frame(FrameField.COPY_SYNC, code.get_frame(FrameField.WARP_SYNC))


class CopyEntry:
    """An entry in an access check: what it says about the reading thread."""

    def __init__(self, code: PtxFunction, entry: str) -> None:
        self._code = code
        block = code.get_context(ContextField.BLOCK_ORDINAL)
        block = code.let(f"add i64 {block}, 1")
        self.is_of_block = code.is_equal(code.let(f"lshr i64 {entry}, {BLOCK_SHIFT}"), block)
        self.thread = code.extract_bits(entry, THREAD_SHIFT, _THREAD_MASK)
        self._group = code.let(f"and i64 {entry}, {_GROUP_MASK}")

    def emit_condition(self, mark: Mark) -> str:
        """Return whether the copy is in progress, or else whether no barrier follows its wait."""
        code = self._code
        frame = code.find_frame(self.thread)
        if mark is Mark.COPY_IN_PROGRESS:
            done = code.load_field(frame, FrameField.COPY_GROUPS_DONE)
            return code.let(f"icmp sgt i64 {self._group}, {done}")
        ordered = code.load_field(frame, FrameField.COPY_GROUPS_ORDERED)
        recent = code.let(f"icmp sgt i64 {self._group}, {ordered}")
        epoch = code.get_context(ContextField.EPOCH)
        same_epoch = code.is_equal(code.load_field(frame, FrameField.COPY_EPOCH), epoch)
        own = code.get_frame(FrameField.THREAD)
        difference = code.let(f"xor i64 {own}, {self.thread}")
        other_thread = code.is_nonzero(difference)
        other_warp = code.let(f"icmp ugt i64 {difference}, 31")
        sync = code.get_frame(FrameField.WARP_SYNC)
        same_sync = code.is_equal(code.load_field(frame, FrameField.COPY_SYNC), sync)
        apart = code.let(f"or i1 {other_warp}, {same_sync}")
        return code.both(recent, same_epoch, other_thread, apart)
