"""Races between programs of a launch, in LLVM: each granule has its last writer and its readers.

Programs run one after the other, so a race is found from the earlier accesses of an element.
Example: program 2 reads an element that program 0 has written with a new value in the same launch;
on a GPU the read could come first, so it is a read-write race. Writes of the value that is there
already are none: they cannot change a result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from harness.kernels.cpu.abi import (
    ATOMIC_FLAG,
    CHANGED_FLAG,
    PROGRAM_SHIFT,
    READER_BITS,
    LaunchField,
    RegionField,
    ViolationKind,
)
from harness.kernels.cpu.access_function import AccessFunction

_READER_MASK = (1 << READER_BITS) - 1


class RaceCheckedAccess(AccessFunction):
    """An access that updates the shadows of writers and readers."""

    def _emit_program_number(self) -> str:
        ordinal = self._code.load_context(LaunchField.PROGRAM_ORDINAL)
        return self._code.let(
            f"add i64 {self._code.load_context(LaunchField.FIRST_PROGRAM)}, {ordinal}"
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
        """Report lanes at which another program has written, if `condition` holds as well."""
        code = self._code
        with self._each_granule(writers) as (index, address, place):
            seen = code.load("i64", place)
            writer = code.let(f"lshr i64 {seen}, {PROGRAM_SHIFT}")
            another = code.let(f"icmp ne i64 {writer}, {program}")
            another = self._emit_and(self._emit_is_current_launch(writer), another)
            self._count_violation(
                self._emit_and(another, condition(seen, index, address)), address, writer
            )
        self._return_if_violated(violation)

    def _emit_has_flag(self, seen: str, flag: int) -> str:
        return self._code.let(f"icmp ne i64 {self._code.let(f'and i64 {seen}, {flag}')}, 0")

    def _check_read_races(self) -> None:
        code = self._code
        shadow = code.load_field("%region", RegionField.READERS)
        with code.when(code.let(f"icmp ne i64 {shadow}, 0")):
            me = self._emit_program_number()
            writers = code.load_field("%region", RegionField.WRITERS)
            self._check_no_other_writer(
                writers,
                me,
                ViolationKind.READ_AFTER_WRITE,
                lambda seen, *_: self._emit_has_flag(seen, CHANGED_FLAG),
            )
            with self._each_granule(shadow) as (_, _, place):
                seen = code.load("i64", place)
                reader = code.let(f"and i64 {seen}, {_READER_MASK}")
                new = code.let(f"xor i1 {self._emit_is_current_launch(reader)}, true")
                with code.when(new):
                    code.store("i64", me, place)
                second = code.let(f"lshr i64 {seen}, {READER_BITS}")
                alone = code.let(f"icmp eq i64 {second}, 0")
                apart = code.let(f"sub i64 {me}, {reader}")
                other = code.let(f"icmp ne i64 {apart}, 0")
                with code.when(self._emit_and(code.let(f"xor i1 {new}, true"), alone, other)):
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
        code, me = self._code, self._emit_program_number()
        writers = code.load_field("%region", RegionField.WRITERS)
        with code.when(code.let(f"icmp ne i64 {writers}, 0")):
            self._check_no_other_writer(
                writers,
                me,
                ViolationKind.ATOMIC_STORE_RACE,
                lambda seen, *_: self._emit_has_flag(seen, ATOMIC_FLAG),
            )
            self._check_no_other_writer(
                writers,
                me,
                ViolationKind.WRITE_WRITE_RACE,
                lambda seen, *lane: self._emit_changes_value(*lane),
            )
            readers = code.load_field("%region", RegionField.READERS)
            with code.when(code.let(f"icmp ne i64 {readers}, 0")):
                with self._each_granule(readers) as (index, address, place):
                    seen = code.load("i64", place)
                    reader = code.let(f"and i64 {seen}, {_READER_MASK}")
                    second = code.let(f"lshr i64 {seen}, {READER_BITS}")
                    mine = code.let(f"icmp eq i64 {reader}, {me}")
                    later = code.let(f"add i64 {reader}, {second}")
                    who = code.let(f"select i1 {mine}, i64 {later}, i64 {reader}")
                    another = code.let(f"icmp ne i64 {who}, {me}")
                    changes = self._emit_changes_value(index, address)
                    self._count_violation(
                        self._emit_and(self._emit_is_current_launch(reader), another, changes),
                        address,
                        who,
                    )
                self._return_if_violated(ViolationKind.WRITE_AFTER_READ)
            with self._each_granule(writers) as (index, address, place):
                seen = code.load("i64", place)
                changes = code.let(f"zext i1 {self._emit_changes_value(index, address)} to i64")
                mark = code.let(f"shl i64 {changes}, {CHANGED_FLAG.bit_length() - 1}")
                before = code.let(f"lshr i64 {seen}, {PROGRAM_SHIFT}")
                again = code.let(f"icmp eq i64 {before}, {me}")
                earlier_flag = code.let(f"select i1 {again}, i64 {seen}, i64 0")
                earlier_flag = code.let(f"and i64 {earlier_flag}, {CHANGED_FLAG}")
                mark = code.let(f"or i64 {mark}, {earlier_flag}")
                number = code.let(f"or i64 {code.let(f'shl i64 {me}, {PROGRAM_SHIFT}')}, {mark}")
                # The writer that changed the element stays: this store writes the same value.
                theirs = self._emit_and(
                    self._emit_is_current_launch(before),
                    code.let(f"xor i1 {again}, true"),
                    self._emit_has_flag(seen, CHANGED_FLAG),
                )
                code.store("i64", code.let(f"select i1 {theirs}, i64 {seen}, i64 {number}"), place)

    def _check_atomic_races(self) -> None:
        """Report an atomic and another program's store; two atomics are no race."""
        code, me = self._code, self._emit_program_number()
        writers = code.load_field("%region", RegionField.WRITERS)
        with code.when(code.let(f"icmp ne i64 {writers}, 0")):
            self._check_no_other_writer(
                writers,
                me,
                ViolationKind.ATOMIC_STORE_RACE,
                lambda seen, *_: code.let(f"xor i1 {self._emit_has_flag(seen, ATOMIC_FLAG)}, true"),
            )
            with self._each_granule(writers) as (_, _, place):
                number = code.let(
                    f"or i64 {code.let(f'shl i64 {me}, {PROGRAM_SHIFT}')}, {ATOMIC_FLAG}"
                )
                code.store("i64", number, place)
