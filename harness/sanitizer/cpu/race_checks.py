"""Races between programs of a launch, in LLVM: each granule has its last writer and its readers.

Programs run one after the other, so a race is found from the earlier accesses of an element.
Example: program 2 reads an element that program 0 has written with a new value in the same launch;
on a GPU the read could come first, so it is a read-write race. Writes of the value that is there
already are none: they cannot change a result. Neither are accesses that atomics order: the first
program has released something (unlocked a lock) that the second has acquired since. So a writer's
entry has the count of atomics before the write, and the atomics of a launch are logged for the one
who decides (`check.program_order`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
from harness.sanitizer.cpu.access_function import AccessFunction
from harness.sanitizer.llvm.text import LlvmFunction
from harness.sanitizer.violations.kinds import RACES, ViolationKind

_READER_MASK = (1 << READER_BITS) - 1


def build_is_ordered() -> LlvmFunction:
    """Build the function that asks whether atomics order an earlier write before this program.

    The last question and its answer are in the context: all lanes of an access ask the same one.
    """
    code = LlvmFunction("define internal i1 @is_ordered(ptr %context, i64 %writer)")
    log = code.load_context(LaunchField.ATOMIC_LOG)
    with code.when(code.let(f"icmp eq i64 {log}, 0"), exits=True):
        code.emit("ret i1 false")
    count, program = code.load_context(LaunchField.ATOMIC_COUNT), _emit_program_number(code)
    question = (
        (LaunchField.ORDER_ENTRY, "%writer"),
        (LaunchField.ORDER_PROGRAM, program),
        (LaunchField.ORDER_COUNT, count),
    )
    same = "true"
    for field, value in question:
        same_field = code.let(f"icmp eq i64 {code.load_context(field)}, {value}")
        same = code.let(f"and i1 {same}, {same_field}")
    with code.when(code.let(f"xor i1 {same}, true")):
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


class RaceCheckedAccess(AccessFunction):
    """An access that updates the shadows of writers and readers."""

    def _emit_entry(self, program: str, flags: str) -> str:
        """Emit a writer's entry: the count of atomics, the program's number, flags."""
        code = self._code
        count = code.load_context(LaunchField.ATOMIC_COUNT)
        count = code.let(f"shl i64 {count}, {COUNT_SHIFT}")
        number = code.let(f"or i64 {code.let(f'shl i64 {program}, {PROGRAM_SHIFT}')}, {flags}")
        return code.let(f"or i64 {count}, {number}")

    def _log_atomics(self) -> None:
        """Log each active lane of an atomic; a full log orders everything."""
        code = self._code
        log = code.load_context(LaunchField.ATOMIC_LOG)
        with code.when(code.is_nonzero(log)):
            me, table = _emit_program_number(code), code.to_pointer(log)
            with self._each_active_lane() as (_, address):
                count = code.load_context(LaunchField.ATOMIC_COUNT)
                with code.when(code.let(f"icmp ult i64 {count}, {MAX_ATOMICS}")):
                    record = code.element_pointer(table, f"[{len(AtomicField)} x i64]", count)
                    for field, value in (
                        (AtomicField.PROGRAM, me),
                        (AtomicField.ADDRESS, address),
                        (AtomicField.SITE, "%site"),
                    ):
                        code.store_element("i64", value, record, field)
                    code.store_element(
                        "i64", code.let(f"add i64 {count}, 1"), "%context", LaunchField.ATOMIC_COUNT
                    )

    @contextmanager
    def _each_granule(self, shadow: str) -> Iterator[tuple[str, str, str]]:
        """Emit the body for each granule of each active lane: index, address, shadow pointer."""
        code = self._code
        base = code.to_pointer(shadow)
        shift = code.load_field("%region", RegionField.GRANULE_BITS)
        with self._each_active_lane() as (index, address):
            first = code.let(f"lshr i64 {self._emit_storage_offset(address)}, {shift}")
            count = code.let(f"lshr i64 {self.size}, {shift}")
            count = code.let(f"call i64 @llvm.umax.i64(i64 {count}, i64 1)")
            with code.loop(count) as step:
                yield (
                    index,
                    address,
                    code.element_pointer(base, "i64", code.let(f"add i64 {first}, {step}")),
                )

    def _emit_is_current_launch(self, number: str) -> str:
        """Emit whether a program's number in a shadow is from this launch."""
        first = self._code.load_context(LaunchField.FIRST_PROGRAM)
        return self._code.let(f"icmp uge i64 {number}, {first}")

    def _check_no_other_writer(
        self,
        writers: str,
        program: str,
        violation: ViolationKind,
        condition: Callable[[str, str, str], str],
    ) -> None:
        """Report lanes at which another program has written, if `condition` holds as well.

        If atomics order the two programs, this is no race.
        """
        code = self._code
        with self._each_granule(writers) as (index, address, place):
            entry = code.load("i64", place)
            writer = _emit_writer(code, entry)
            another = code.let(f"icmp ne i64 {writer}, {program}")
            another = self._code.join_conditions(self._emit_is_current_launch(writer), another)
            with code.when(self._code.join_conditions(another, condition(entry, index, address))):
                ordered = code.let(f"call i1 @is_ordered(ptr %context, i64 {entry})")
                self._count_violation(code.let(f"xor i1 {ordered}, true"), address, writer)
        self._return_if_violated(violation)

    def _emit_has_flag(self, entry: str, flag: int) -> str:
        return self._code.let(f"icmp ne i64 {self._code.let(f'and i64 {entry}, {flag}')}, 0")

    def _check_read_races(self) -> None:
        code = self._code
        shadow = code.load_field("%region", RegionField.READERS)
        writers = code.load_field("%region", RegionField.WRITERS)
        by_log = code.load_context(LaunchField.READS_RACE)
        is_tracked = code.let(f"icmp ne i64 {code.let(f'or i64 {shadow}, {by_log}')}, 0")
        is_written = code.is_nonzero(writers)
        with code.when(self._code.join_conditions(is_tracked, is_written)):
            self._check_no_other_writer(
                writers,
                _emit_program_number(code),
                RACES["write", "read"],
                lambda entry, *_: self._emit_has_flag(entry, CHANGED_FLAG),
            )
        with code.when(code.is_nonzero(shadow)):
            me = _emit_program_number(code)
            with self._each_granule(shadow) as (_, _, place):
                entry = code.load("i64", place)
                reader = code.let(f"and i64 {entry}, {_READER_MASK}")
                new = code.let(f"xor i1 {self._emit_is_current_launch(reader)}, true")
                with code.when(new):
                    code.store("i64", me, place)
                second = code.let(f"lshr i64 {entry}, {READER_BITS}")
                alone = code.let(f"icmp eq i64 {second}, 0")
                apart = code.let(f"sub i64 {me}, {reader}")
                other = code.is_nonzero(apart)
                with code.when(
                    self._code.join_conditions(code.let(f"xor i1 {new}, true"), alone, other)
                ):
                    far = code.let(
                        f"call i64 @llvm.umin.i64(i64 {apart}, i64 {(1 << (64 - READER_BITS)) - 1})"
                    )
                    high = code.let(f"shl i64 {far}, {READER_BITS}")
                    code.store("i64", code.let(f"or i64 {high}, {reader}"), place)

    def _emit_changes_value(self, index: str, address: str) -> str:
        code = self._code
        stored = code.load(self.llvm_type, code.to_pointer(address) + ", align 1")
        new = code.load_element(self.llvm_type, "%values", index)
        return code.let(f"icmp ne {self.llvm_type} {stored}, {new}")

    def _check_write_races(self) -> None:
        code = self._code
        me = _emit_program_number(code)
        writers = code.load_field("%region", RegionField.WRITERS)
        with code.when(code.is_nonzero(writers)):
            self._check_no_other_writer(
                writers,
                me,
                RACES["update", "write"],
                lambda entry, *_: self._emit_has_flag(entry, ATOMIC_FLAG),
            )
            self._check_no_other_writer(
                writers,
                me,
                RACES["write", "write"],
                lambda entry, *lane: self._emit_changes_value(*lane),
            )
            readers = code.load_field("%region", RegionField.READERS)
            with code.when(code.is_nonzero(readers)):
                with self._each_granule(readers) as (index, address, place):
                    entry = code.load("i64", place)
                    reader = code.let(f"and i64 {entry}, {_READER_MASK}")
                    second = code.let(f"lshr i64 {entry}, {READER_BITS}")
                    is_own = code.let(f"icmp eq i64 {reader}, {me}")
                    later = code.let(f"add i64 {reader}, {second}")
                    who = code.let(f"select i1 {is_own}, i64 {later}, i64 {reader}")
                    another = code.let(f"icmp ne i64 {who}, {me}")
                    changes = self._emit_changes_value(index, address)
                    self._count_violation(
                        self._code.join_conditions(
                            self._emit_is_current_launch(reader), another, changes
                        ),
                        address,
                        who,
                    )
                self._return_if_violated(RACES["read", "write"])
            with self._each_granule(writers) as (index, address, place):
                entry = code.load("i64", place)
                changes = code.let(f"zext i1 {self._emit_changes_value(index, address)} to i64")
                mark = code.let(f"shl i64 {changes}, {CHANGED_FLAG.bit_length() - 1}")
                before = _emit_writer(code, entry)
                again = code.let(f"icmp eq i64 {before}, {me}")
                earlier_flag = code.let(f"select i1 {again}, i64 {entry}, i64 0")
                earlier_flag = code.let(f"and i64 {earlier_flag}, {CHANGED_FLAG}")
                mark = code.let(f"or i64 {mark}, {earlier_flag}")
                number = self._emit_entry(me, mark)
                # The writer that changed the element stays: this store writes the same value.
                keeps_entry = self._code.join_conditions(
                    self._emit_is_current_launch(before),
                    code.let(f"xor i1 {again}, true"),
                    self._emit_has_flag(entry, CHANGED_FLAG),
                )
                code.store(
                    "i64", code.let(f"select i1 {keeps_entry}, i64 {entry}, i64 {number}"), place
                )

    def _check_atomic_races(self) -> None:
        """Report an atomic and another program's store; two atomics are no race."""
        code = self._code
        me = _emit_program_number(code)
        self._log_atomics()
        writers = code.load_field("%region", RegionField.WRITERS)
        with code.when(code.is_nonzero(writers)):
            self._check_no_other_writer(
                writers,
                me,
                RACES["write", "update"],
                lambda entry, *_: code.let(
                    f"xor i1 {self._emit_has_flag(entry, ATOMIC_FLAG)}, true"
                ),
            )
            with self._each_granule(writers) as (_, _, place):
                code.store("i64", self._emit_entry(me, str(ATOMIC_FLAG)), place)
