"""The entries of writers and readers, in LLVM: each granule has its last writer and its readers.

Programs run one after the other, so a race is found from the earlier accesses of an element, and
its tables are exact. Accesses that atomics order are no race: the first program has released
something (unlocked a lock) that the second has acquired since. So a writer's entry has the count of
atomics before the write, and the atomics of a launch are logged for the one who decides
(`check.program_order`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from harness.sanitizer.checks.words import Earlier, Lane
from harness.sanitizer.cpu.abi import (
    ATOMIC_FLAG,
    CHANGED_FLAG,
    COUNT_SHIFT,
    MAX_ATOMICS,
    PROGRAM_SHIFT,
    READER_BITS,
    WRITER_BITS,
    AtomicField,
    LaunchField,
    RegionField,
)
from harness.sanitizer.cpu.access_function import AccessFunction, LaneCounter
from harness.sanitizer.llvm.text import LlvmFunction
from harness.sanitizer.violations.kinds import RACES, ViolationKind

_RACE_KINDS = tuple(dict.fromkeys(RACES.values()))
_READER_MASK = (1 << READER_BITS) - 1


def build_is_ordered() -> LlvmFunction:
    """Build the function that asks whether atomics order an earlier write before this program.

    The last question and its answer are in the context: all lanes of an access ask the same one.
    """
    code = LlvmFunction("define internal i1 @is_ordered(ptr %context, i64 %writer)")
    log = code.load_context(LaunchField.ATOMIC_LOG)
    with code.when(code.is_equal(log, 0), exits=True):
        code.emit("ret i1 false")
    count, program = code.load_context(LaunchField.ATOMIC_COUNT), _emit_program_number(code)
    question = (
        (LaunchField.ORDER_ENTRY, "%writer"),
        (LaunchField.ORDER_PROGRAM, program),
        (LaunchField.ORDER_COUNT, count),
    )
    same = code.both(*(code.is_equal(code.load_context(field), value) for field, value in question))
    with code.when(code.negate(same)):
        writer, before = _emit_writer(code, "%writer"), code.let(f"lshr i64 %writer, {COUNT_SHIFT}")
        query = code.to_pointer(code.load_context(LaunchField.ORDER_QUERY))
        answer = code.let(
            f"call i64 {query}(i64 {writer}, i64 {before}, i64 {program}, i64 {count})"
        )
        for field, value in (*question, (LaunchField.ORDER_ANSWER, answer)):
            code.store_element("i64", value, "%context", field)
    answer = code.load_context(LaunchField.ORDER_ANSWER)
    code.emit(f"ret i1 {code.is_nonzero(answer)}")
    return code


def _emit_writer(code: LlvmFunction, entry: str) -> str:
    """Emit the number of the program in a writer's entry."""
    number = code.let(f"lshr i64 {entry}, {PROGRAM_SHIFT}")
    return code.let(f"and i64 {number}, {(1 << WRITER_BITS) - 1}")


def _emit_program_number(code: LlvmFunction) -> str:
    ordinal = code.load_context(LaunchField.PROGRAM_ORDINAL)
    return code.let(f"add i64 {code.load_context(LaunchField.FIRST_PROGRAM)}, {ordinal}")


@dataclass(frozen=True, slots=True)
class LaneGranule:
    """A granule of a lane, and the number of its entries in the tables."""

    lane: Lane[str]
    index: str


class BlockRaceEntries(AccessFunction):
    """Looks entries up for all lanes, and then enters the access: lanes of it are no others."""

    def granules(self) -> Iterator[LaneGranule]:
        code = self.code
        writers, readers = map(self.load_region, (RegionField.WRITERS, RegionField.READERS))
        self._writers, self._readers = map(code.to_pointer, (writers, readers))
        self._has_readers = code.is_nonzero(readers)
        self._me = _emit_program_number(code)
        is_written = is_asked = code.is_nonzero(writers)
        if self.verb == "update":
            self._log_atomics()
        if self.verb == "read":
            by_log = code.load_context(LaunchField.READS_RACE)
            is_tracked = code.is_nonzero(code.let(f"or i64 {readers}, {by_log}"))
            is_asked = code.both(is_tracked, is_written)
        with code.when(is_asked):
            self._counters = {kind: LaneCounter(code) for kind in _RACE_KINDS}
            with self._each_granule() as granule:
                yield granule
            for kind, counter in self._counters.items():
                self.report_counted(kind, counter)
        enters = self._has_readers if self.verb == "read" else is_written
        with code.when(enters), self._each_granule() as granule:
            if self.verb == "read":
                self._enter_reader(code.element_pointer(self._readers, "i64", granule.index))
            else:
                self._enter_writer(granule)

    @contextmanager
    def _each_granule(self) -> Iterator[LaneGranule]:
        """Emit the body for each granule of each active lane."""
        code = self.code
        shift = self.load_region(RegionField.GRANULE_BITS)
        with self.each_active_lane() as lane:
            first = code.let(f"lshr i64 {self.measure_storage_offset(lane.address)}, {shift}")
            count = code.let(f"lshr i64 {self.size}, {shift}")
            count = code.let(f"call i64 @llvm.umax.i64(i64 {count}, i64 1)")
            with code.loop(count) as step:
                yield LaneGranule(lane, code.let(f"add i64 {first}, {step}"))

    # What checks ask

    def changes(self, granule: LaneGranule) -> str:
        return self.changes_value(granule.lane)

    differs = changes  # what the last writer wrote is in the memory

    def enter(self, granule: LaneGranule, changes: str | None = None) -> str:
        return self.code.load_element("i64", self._writers, granule.index)

    def was(self, entry: str, what: Earlier) -> str:
        flag = CHANGED_FLAG if what is Earlier.CHANGED else ATOMIC_FLAG
        has_flag = self.code.is_nonzero(self.code.let(f"and i64 {entry}, {flag}"))
        return self.code.negate(has_flag) if what is Earlier.STORED else has_flag

    def find_later_writes(self, granule: LaneGranule, where: str) -> tuple[str, ...]:
        return ()  # one program runs at a time

    def find_reads(self, granule: LaneGranule, where: str | None = None) -> Iterator[str]:
        """Yield the first reader, or else the second: as an entry of a writer."""
        if self.verb == "update":
            return
        code = self.code
        with code.when(self._has_readers):
            entry = code.load_element("i64", self._readers, granule.index)
            reader = code.let(f"and i64 {entry}, {_READER_MASK}")
            second = code.let(f"lshr i64 {entry}, {READER_BITS}")
            later = code.let(f"add i64 {reader}, {second}")
            is_own = code.is_equal(reader, self._me)
            other = code.let(f"select i1 {is_own}, i64 {later}, i64 {reader}")
            yield code.let(f"shl i64 {other}, {PROGRAM_SHIFT}")

    def report_race(
        self, kind: ViolationKind, granule: LaneGranule, entry: str, where: str | None = None
    ) -> None:
        code, other = self.code, _emit_writer(self.code, entry)
        another = code.negate(code.is_equal(other, self._me))
        conditions = [another] if where is None else [another, where]
        with code.when(code.both(self._is_of_launch(other), *conditions)):
            ordered = code.let(f"call i1 @is_ordered(ptr %context, i64 {entry})")
            self._counters[kind].count(code.negate(ordered), granule.lane.address, other)

    def _is_of_launch(self, program: str) -> str:
        return self.code.is_at_least(program, self.code.load_context(LaunchField.FIRST_PROGRAM))

    # Entries

    def _make_entry(self, flags: str) -> str:
        """Make a writer's entry: the count of atomics, the program's number, flags."""
        code = self.code
        count = code.load_context(LaunchField.ATOMIC_COUNT)
        count = code.let(f"shl i64 {count}, {COUNT_SHIFT}")
        number = code.let(f"or i64 {code.let(f'shl i64 {self._me}, {PROGRAM_SHIFT}')}, {flags}")
        return code.let(f"or i64 {count}, {number}")

    def _enter_writer(self, granule: LaneGranule) -> None:
        code = self.code
        place = code.element_pointer(self._writers, "i64", granule.index)
        if self.verb == "update":
            code.store("i64", self._make_entry(str(ATOMIC_FLAG)), place)
            return
        before = code.load("i64", place)
        writer, has_changed = _emit_writer(code, before), self.was(before, Earlier.CHANGED)
        again = code.is_equal(writer, self._me)
        changed = code.let(f"select i1 {again}, i1 {has_changed}, i1 false")
        changed = code.let(f"or i1 {changed}, {self.changes(granule)}")
        entry = self._make_entry(code.let(f"select i1 {changed}, i64 {CHANGED_FLAG}, i64 0"))
        # The writer that changed the element stays: this store writes the same value.
        stays = code.both(self._is_of_launch(writer), code.negate(again), has_changed)
        code.store("i64", code.let(f"select i1 {stays}, i64 {before}, i64 {entry}"), place)

    def _enter_reader(self, place: str) -> None:
        code = self.code
        entry = code.load("i64", place)
        reader = code.let(f"and i64 {entry}, {_READER_MASK}")
        is_known = self._is_of_launch(reader)
        with code.when(code.negate(is_known)):
            code.store("i64", self._me, place)
        second = code.let(f"lshr i64 {entry}, {READER_BITS}")
        apart = code.subtract(self._me, reader)
        is_second = code.both(is_known, code.is_equal(second, 0), code.is_nonzero(apart))
        with code.when(is_second):
            most = (1 << (64 - READER_BITS)) - 1
            far = code.let(f"call i64 @llvm.umin.i64(i64 {apart}, i64 {most})")
            high = code.let(f"shl i64 {far}, {READER_BITS}")
            code.store("i64", code.let(f"or i64 {high}, {reader}"), place)

    def _log_atomics(self) -> None:
        """Log each active lane of an atomic; a full log orders everything."""
        code = self.code
        log = code.load_context(LaunchField.ATOMIC_LOG)
        with code.when(code.is_nonzero(log)):
            table = code.to_pointer(log)
            with self.each_active_lane() as lane:
                count = code.load_context(LaunchField.ATOMIC_COUNT)
                with code.when(code.let(f"icmp ult i64 {count}, {MAX_ATOMICS}")):
                    record = code.element_pointer(table, f"[{len(AtomicField)} x i64]", count)
                    for field, value in (
                        (AtomicField.PROGRAM, self._me),
                        (AtomicField.ADDRESS, lane.address),
                        (AtomicField.SITE, "%site"),
                    ):
                        code.store_element("i64", value, record, field)
                    code.store_element(
                        "i64", code.let(f"add i64 {count}, 1"), "%context", LaunchField.ATOMIC_COUNT
                    )
