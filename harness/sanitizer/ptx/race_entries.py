"""The entries of threads, in LLVM: each granule has its last writer and its readers.

Threads run one after another, so a race is found from earlier accesses. An entry is the number of
an access: the epoch, which every barrier and every block raises; the count of its warp's
synchronizations; the thread; two flags. Two accesses of one block have an order if a barrier lies
between them, if one thread does both, or if their warp has synchronized between them. Blocks have
no order, unless the kernel may synchronize them itself (`flow.synchronizes_blocks`). Example:
thread 3 writes a word of shared memory in epoch 70, thread 4 reads it in epoch 70: a race.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from harness.sanitizer.checks.words import Earlier, Lane, Question
from harness.sanitizer.ptx.abi import (
    OVERFLOW_FLAG,
    ContextField,
    FrameField,
    PtxRegionField,
    RegionSpace,
)
from harness.sanitizer.ptx.llvm_code import PtxFunction
from harness.sanitizer.violations.kinds import ViolationKind
from harness.sanitizer.violations.targets import Target, list_kinds

_EPOCH_SHIFT, _SYNC_SHIFT, _THREAD_SHIFT = 24, 14, 4
_TEN_BITS = 1023
_ATOMIC, _CHANGED = 1, 2  # flags of a writer
_SEVERAL, _OTHER_BLOCK = 1, 2  # flags of readers: more than one thread; an earlier block as well


@dataclass(frozen=True, slots=True)
class ThreadGranule:
    """The entries of a granule's last writer and of its readers."""

    writer: str
    reader: str


class ThreadRaceEntries:
    """A check's function: its reports, and the entries of the memory that is accessed."""

    kinds = list_kinds(Target.CUDA_CPU)
    region: str

    def __init__(self, name: str) -> None:
        self.verb = {"peek": "read", "poke": "write"}.get(name, name)
        self.may_order = name in ("peek", "poke")
        self.code = PtxFunction(
            f"define i32 @ptx_{name}(ptr %context, ptr %frame, i64 %site, i64 %address, i64 %size,"
            " i32 %region, i32 %state, ptr %new)"
        )
        self.number = self.code.let("zext i32 %region to i64")
        self._other = self.code.alloca("i64", "0")

    def load_region(self, field: PtxRegionField) -> str:
        return self.code.load_field(self.region, field)

    # Reports

    def skip_reported_lanes(self) -> AbstractContextManager[None]:
        return nullcontext()  # a report ends the launch

    def report(self, kind: ViolationKind, question: Question[str]) -> None:
        code, condition = self.code, question(Lane("%address", "%frame"))
        with code.when(condition, exits=True):
            other = code.load("i64", self._other)
            if kind is ViolationKind.OVERFLOW:
                number = code.let(f"and i32 %state, {OVERFLOW_FLAG - 1}")
                other = code.let(f"zext i32 {number} to i64")
            self.fill_report(kind, other)

    report_place = report

    def fill_report(self, kind: ViolationKind, other: str = "0") -> None:
        self.code.fill_report(
            kind, "%site", address="%address", size="%size", region=self.number, other=other
        )
        self.code.emit("ret i32 1")

    # What checks ask

    def granules(self) -> Iterator[ThreadGranule]:
        code = self.code
        writers = self.load_region(PtxRegionField.WRITERS)
        with code.when(code.is_nonzero(writers)):
            self._load_own_entry()
            offset = code.subtract("%address", self.load_region(PtxRegionField.STORAGE))
            shift = self.load_region(PtxRegionField.GRANULE_BITS)
            first = code.let(f"lshr i64 {offset}, {shift}")
            count = code.let(f"lshr i64 %size, {shift}")
            count = code.call_intrinsic("umax", "i64", count, 1)
            tables = writers, self.load_region(PtxRegionField.READERS)
            pointers = [code.to_pointer(table) for table in tables]
            changes = self._compare_with_memory()
            with code.loop(count) as step:
                index = code.let(f"add i64 {first}, {step}")
                places = [code.element_pointer(table, "i64", index) for table in pointers]
                granule = ThreadGranule(*(code.load("i64", place) for place in places))
                if self.verb == "read":
                    yield granule
                    self._enter_reader(granule.reader, places[1])
                else:
                    with code.when(changes):  # else it is no race
                        yield granule
                    self._enter_writer(granule.writer, places[0], changes)

    def changes(self, granule: ThreadGranule) -> str:
        return "true"

    differs = changes

    def enter(self, granule: ThreadGranule, changes: str | None = None) -> str:
        return granule.writer

    def was(self, entry: str, what: Earlier) -> str:
        """Of a store that changed nothing, an update does not count that it stored."""
        atomic, changed = (self._has_flag(entry, flag) for flag in (_ATOMIC, _CHANGED))
        stored = self.code.both(self.code.negate(atomic), changed)
        return {Earlier.ATOMIC: atomic, Earlier.CHANGED: changed, Earlier.STORED: stored}[what]

    def find_later_writes(self, granule: ThreadGranule, where: str) -> tuple[str, ...]:
        return ()  # one thread runs at a time

    def find_reads(self, granule: ThreadGranule, where: str | None = None) -> tuple[str, ...]:
        return (granule.reader,)

    def report_race(
        self, kind: ViolationKind, granule: ThreadGranule, entry: str, where: str | None = None
    ) -> None:
        """Report an entry of another block, or of this block without an order."""
        code, conditions = self.code, () if where is None else (where,)
        self._report_if(code.both(self._is_other_block(entry), *conditions), kind, "-1")
        unordered = code.both(self._is_unordered(entry), *conditions)
        self._report_if(unordered, kind, self._thread_of(entry))
        if entry == granule.reader:
            several = code.both(self._is_current(entry), self._has_flag(entry, _SEVERAL))
            self._report_if(several, kind, self._thread_of(entry))
            earlier = code.both(
                code.is_at_least(self._epoch_of(entry), self._launch_epoch),
                self._has_flag(entry, _OTHER_BLOCK),
                self._blocks_race,
            )
            self._report_if(earlier, kind, "-1")

    def _report_if(self, condition: str, kind: ViolationKind, other: str) -> None:
        with self.code.when(condition, exits=True):
            self.fill_report(kind, other)

    # Entries

    def _load_own_entry(self) -> None:
        code = self.code
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
        self._blocks_race = code.both(
            code.is_equal(self.load_region(PtxRegionField.SPACE), RegionSpace.GLOBAL),
            code.is_nonzero(code.get_context(ContextField.UNORDERED_BLOCKS)),
        )

    def _compare_with_memory(self) -> str:
        """Return whether a write changes the memory; an atomic update always counts."""
        code = self.code
        if self.verb != "write" or self.may_order:
            return "true"
        memory = code.to_pointer("%address")
        order = code.let(f"call i32 @memcmp(ptr {memory}, ptr %new, i64 %size)")
        return code.let(f"icmp ne i32 {order}, 0")

    def _has_flag(self, entry: str, flag: int) -> str:
        return self.code.is_nonzero(self.code.let(f"and i64 {entry}, {flag}"))

    def _epoch_of(self, entry: str) -> str:
        return self.code.let(f"lshr i64 {entry}, {_EPOCH_SHIFT}")

    def _is_other_block(self, entry: str) -> str:
        code, epoch = self.code, self._epoch_of(entry)
        return code.both(
            code.is_at_least(epoch, self._launch_epoch),
            code.let(f"icmp ult i64 {epoch}, {self._block_epoch}"),
            self._blocks_race,
        )

    def _thread_of(self, entry: str) -> str:
        return self.code.extract_bits(entry, _THREAD_SHIFT, _TEN_BITS)

    def _is_current(self, entry: str) -> str:
        return self.code.is_equal(self._epoch_of(entry), self._epoch)

    def _is_unordered(self, entry: str) -> str:
        """Return whether an access of this epoch has no order to this one."""
        code = self.code
        thread = self._thread_of(entry)
        differs = code.let(f"icmp ne i64 {thread}, {self._thread}")
        apart = code.let(f"lshr i64 {code.let(f'xor i64 {thread}, {self._thread}')}, 5")
        other_warp = code.is_nonzero(apart)
        syncs = code.extract_bits(entry, _SYNC_SHIFT, _TEN_BITS)
        without_sync = code.let(f"or i1 {other_warp}, {code.is_equal(syncs, self._syncs)}")
        return code.both(self._is_current(entry), differs, without_sync)

    def _enter_reader(self, reader: str, place: str) -> None:
        code = self.code
        flags = code.let(f"and i64 {reader}, {_OTHER_BLOCK}")
        in_launch = code.is_at_least(self._epoch_of(reader), self._launch_epoch)
        flags = code.let(f"select i1 {in_launch}, i64 {flags}, i64 0")
        other = code.let(f"select i1 {self._is_other_block(reader)}, i64 {_OTHER_BLOCK}, i64 0")
        fresh = code.let(f"or i64 {self._own}, {code.let(f'or i64 {flags}, {other}')}")
        # A reader without an order to this one stays, and both are two.
        both = code.let(f"or i64 {reader}, {_SEVERAL}")
        latest = code.let(f"select i1 {self._is_unordered(reader)}, i64 {both}, i64 {fresh}")
        several = code.both(self._is_current(reader), self._has_flag(reader, _SEVERAL))
        code.store("i64", code.let(f"select i1 {several}, i64 {reader}, i64 {latest}"), place)

    def _enter_writer(self, writer: str, place: str, changes: str) -> None:
        code = self.code
        is_plain = self.verb == "write" and not self.may_order
        changed = code.let(f"or i64 {self._own}, {_CHANGED if is_plain else _CHANGED | _ATOMIC}")
        current = self._is_current(writer)
        same = code.let(f"select i1 {current}, i64 {writer}, i64 {self._own}")
        code.store("i64", code.let(f"select i1 {changes}, i64 {changed}, i64 {same}"), place)
