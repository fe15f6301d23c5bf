"""Races of threads and blocks, in LLVM: each granule has its last writer and its readers.

Threads run one after another, so a race is found from earlier accesses. An entry is the number of
an access: the epoch, which every barrier and every block raises; the count of its warp's
synchronizations; the thread; two flags. Two accesses of one block have an order if a barrier lies
between them, if one thread does both, or if their warp has synchronized between them. Blocks have
no order, unless the kernel may synchronize them itself (`flow.synchronizes_blocks`). Example:
thread 3 writes a word of shared memory in epoch 70, thread 4 reads it in epoch 70: a race. A write
of the value that is there already is none: it cannot change a result.
"""

from __future__ import annotations

from harness.sanitizer.ptx.abi import (
    ContextField,
    FrameField,
    PtxRegionField,
    RegionSpace,
)
from harness.sanitizer.ptx.llvm_code import PtxFunction
from harness.sanitizer.violations.kinds import RACES, ViolationKind

_EPOCH_SHIFT, _SYNC_SHIFT, _THREAD_SHIFT = 24, 14, 4
_TEN_BITS = 1023
_ATOMIC, _CHANGED = 1, 2  # flags of a writer
_SEVERAL, _OTHER_BLOCK = 1, 2  # flags of readers: more than one thread; an earlier block as well


class RaceCheckedPtxAccess:
    """The beginning of a check's function, and its check for races."""

    _region: str
    _number: str

    def __init__(self, verb: str) -> None:
        self.verb = verb
        self.function = self._code = PtxFunction(
            f"define i32 @ptx_{verb}(ptr %context, ptr %frame, i64 %site, i64 %address, i64 %size,"
            " i32 %region, i32 %state, ptr %new)"
        )

    def _report(self, kind: ViolationKind, region: str, other: str = "0") -> None:
        self._code.fill_report(
            kind, "%site", address="%address", size="%size", region=region, other=other
        )
        self._code.emit("ret i32 1")

    def _field(self, field: PtxRegionField) -> str:
        return self._code.load_field(self._region, field)

    def _check_races(self) -> None:
        code = self._code
        writers = self._field(PtxRegionField.WRITERS)
        with code.when(code.is_nonzero(writers)):
            self._load_own_number()
            offset = code.let(f"sub i64 %address, {self._field(PtxRegionField.STORAGE)}")
            shift = self._field(PtxRegionField.GRANULE_BITS)
            first = code.let(f"lshr i64 {offset}, {shift}")
            count = code.let(f"lshr i64 %size, {shift}")
            count = code.call_intrinsic("umax", "i64", count, 1)
            readers = code.to_pointer(self._field(PtxRegionField.READERS))
            writer_table = code.to_pointer(writers)
            changes = self._emit_changes()
            with code.loop(count) as step:
                index = code.let(f"add i64 {first}, {step}")
                writer_place = code.element_pointer(writer_table, "i64", index)
                reader_place = code.element_pointer(readers, "i64", index)
                writer, reader = code.load("i64", writer_place), code.load("i64", reader_place)
                if self.verb == "read":
                    self._check_read(writer)
                    self._add_reader(reader, reader_place)
                else:
                    with code.when(changes):
                        self._check_write(writer, reader)
                    self._set_writer(writer, writer_place, changes)

    def _load_own_number(self) -> None:
        code = self._code
        self._epoch = code.get_context(ContextField.EPOCH)
        self._thread = code.get_frame(FrameField.THREAD)
        syncs = code.get_frame(FrameField.WARP_SYNC)
        self._syncs = code.let(f"and i64 {syncs}, {_TEN_BITS}")
        parts = (
            code.let(f"shl i64 {self._epoch}, {_EPOCH_SHIFT}"),
            code.let(f"shl i64 {self._syncs}, {_SYNC_SHIFT}"),
            code.let(f"shl i64 {self._thread}, {_THREAD_SHIFT}"),
        )
        self._own = code.let(f"or i64 {code.let(f'or i64 {parts[0]}, {parts[1]}')}, {parts[2]}")
        self._launch_epoch = code.get_context(ContextField.LAUNCH_EPOCH)
        self._block_epoch = code.get_context(ContextField.BLOCK_EPOCH)
        self._blocks_race = code.join_conditions(
            code.is_equal(self._field(PtxRegionField.SPACE), RegionSpace.GLOBAL),
            code.is_nonzero(code.get_context(ContextField.UNORDERED_BLOCKS)),
        )

    def _emit_changes(self) -> str:
        """Emit whether a write changes the memory; an atomic update always counts."""
        code = self._code
        if self.verb != "write":
            return "true"
        memory = code.to_pointer("%address")
        order = code.let(f"call i32 @memcmp(ptr {memory}, ptr %new, i64 %size)")
        return code.let(f"icmp ne i32 {order}, 0")

    def _has_flag(self, entry: str, flag: int) -> str:
        return self._code.is_nonzero(self._code.let(f"and i64 {entry}, {flag}"))

    def _epoch_of(self, entry: str) -> str:
        return self._code.let(f"lshr i64 {entry}, {_EPOCH_SHIFT}")

    def _is_other_block(self, entry: str) -> str:
        code, epoch = self._code, self._epoch_of(entry)
        return code.join_conditions(
            code.let(f"icmp uge i64 {epoch}, {self._launch_epoch}"),
            code.let(f"icmp ult i64 {epoch}, {self._block_epoch}"),
            self._blocks_race,
        )

    def _thread_of(self, entry: str) -> str:
        return self._code.extract_bits(entry, _THREAD_SHIFT, _TEN_BITS)

    def _is_current(self, entry: str) -> str:
        return self._code.is_equal(self._epoch_of(entry), self._epoch)

    def _is_unordered(self, entry: str) -> str:
        """Emit whether an access of this epoch has no order to this one."""
        code = self._code
        thread = self._thread_of(entry)
        differs = code.let(f"icmp ne i64 {thread}, {self._thread}")
        apart = code.let(f"lshr i64 {code.let(f'xor i64 {thread}, {self._thread}')}, 5")
        other_warp = code.is_nonzero(apart)
        syncs = code.extract_bits(entry, _SYNC_SHIFT, _TEN_BITS)
        without_sync = code.let(f"or i1 {other_warp}, {code.is_equal(syncs, self._syncs)}")
        return code.join_conditions(self._is_current(entry), differs, without_sync)

    def _report_if(self, condition: str, kind: ViolationKind, other: str) -> None:
        with self._code.when(condition, exits=True):
            self._report(kind, self._number, other)

    def _check_against(self, entry: str, condition: str, kind: ViolationKind) -> None:
        """Report an entry of another block, or of this block without an order."""
        join_conditions = self._code.join_conditions
        self._report_if(join_conditions(condition, self._is_other_block(entry)), kind, "-1")
        unordered = join_conditions(condition, self._is_unordered(entry))
        self._report_if(unordered, kind, self._thread_of(entry))

    def _check_read(self, writer: str) -> None:
        self._check_against(writer, self._has_flag(writer, _CHANGED), RACES["write", "read"])

    def _check_write(self, writer: str, reader: str) -> None:
        code = self._code
        atomic = self._has_flag(writer, _ATOMIC)
        plain = code.let(f"xor i1 {atomic}, true")
        if self.verb == "write":
            self._check_against(writer, plain, RACES["write", "write"])
            self._check_against(writer, atomic, RACES["update", "write"])
        else:
            changed = code.join_conditions(plain, self._has_flag(writer, _CHANGED))
            self._check_against(writer, changed, RACES["write", "update"])
        self._check_against(reader, "true", RACES["read", "write"])
        several = code.join_conditions(self._is_current(reader), self._has_flag(reader, _SEVERAL))
        self._report_if(several, RACES["read", "write"], self._thread_of(reader))
        earlier = code.join_conditions(
            code.let(f"icmp uge i64 {self._epoch_of(reader)}, {self._launch_epoch}"),
            self._has_flag(reader, _OTHER_BLOCK),
            self._blocks_race,
        )
        self._report_if(earlier, RACES["read", "write"], "-1")

    def _add_reader(self, reader: str, place: str) -> None:
        code = self._code
        flags = code.let(f"and i64 {reader}, {_OTHER_BLOCK}")
        in_launch = code.let(f"icmp uge i64 {self._epoch_of(reader)}, {self._launch_epoch}")
        flags = code.let(f"select i1 {in_launch}, i64 {flags}, i64 0")
        other = code.let(f"select i1 {self._is_other_block(reader)}, i64 {_OTHER_BLOCK}, i64 0")
        fresh = code.let(f"or i64 {self._own}, {code.let(f'or i64 {flags}, {other}')}")
        # A reader without an order to this one stays, and both are two.
        both = code.let(f"or i64 {reader}, {_SEVERAL}")
        latest = code.let(f"select i1 {self._is_unordered(reader)}, i64 {both}, i64 {fresh}")
        several = code.join_conditions(self._is_current(reader), self._has_flag(reader, _SEVERAL))
        code.store("i64", code.let(f"select i1 {several}, i64 {reader}, i64 {latest}"), place)

    def _set_writer(self, writer: str, place: str, changes: str) -> None:
        code = self._code
        flags = _CHANGED | (0 if self.verb == "write" else _ATOMIC)
        changed = code.let(f"or i64 {self._own}, {flags}")
        current = self._is_current(writer)
        same = code.let(f"select i1 {current}, i64 {writer}, i64 {self._own}")
        code.store("i64", code.let(f"select i1 {changes}, i64 {changed}, i64 {same}"), place)
