"""Programs of a launch against each other: who wrote an element, who read it, in machine code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from harness.native.layout import ATOMIC, CHANGED, READER_BITS, SHIFT, Context, Fault, Region
from harness.native.refusing import Lanes

_READER = (1 << READER_BITS) - 1


class Races(Lanes):
    """Granules of a region, each with who wrote it last and who read it since."""

    def _me(self) -> str:
        ordinal = self._code.field("%context", Context.ORDINAL)
        return self._code.let(f"add i64 {self._code.field('%context', Context.FIRST)}, {ordinal}")

    @contextmanager
    def _each_granule(self, shadow: str) -> Iterator[tuple[str, str, str]]:
        """Each lane's places in a shadow: its index, its address, a place."""
        code = self._code
        base = code.pointer(shadow)
        shift = code.field("%region", Region.GRANULE)
        with self._each_on() as (index, address):
            first = code.let(f"lshr i64 {self._offset(address)}, {shift}")
            count = code.let(f"lshr i64 {self.size}, {shift}")
            count = code.let(f"call i64 @llvm.umax.i64(i64 {count}, i64 1)")
            with code.loop(count) as step:
                yield index, address, code.at(base, "i64", code.let(f"add i64 {first}, {step}"))

    def _is_now(self, number: str) -> str:
        """Of this launch, whatever was written there in earlier ones."""
        first = self._code.field("%context", Context.FIRST)
        return self._code.let(f"icmp uge i64 {number}, {first}")

    def _no_other_wrote(
        self, writers: str, me: str, fault: Fault, so: Callable[[str, str, str], str]
    ) -> None:
        """No other program wrote what a lane is at, `so`: by what is noted of that, by the lane."""
        code = self._code
        with self._each_granule(writers) as (index, address, place):
            seen = code.load("i64", place)
            writer = code.let(f"lshr i64 {seen}, {SHIFT}")
            another = code.let(f"icmp ne i64 {writer}, {me}")
            another = self._both(self._is_now(writer), another)
            self._count(self._both(another, so(seen, index, address)), address, writer)
        self._refuse(fault)

    def _has(self, seen: str, flag: int) -> str:
        return self._code.let(f"icmp ne i64 {self._code.let(f'and i64 {seen}, {flag}')}, 0")

    def _watch_reads(self) -> None:
        code = self._code
        shadow = code.field("%region", Region.READERS)
        with code.when(code.let(f"icmp ne i64 {shadow}, 0")):
            me = self._me()
            writers = code.field("%region", Region.WRITERS)
            self._no_other_wrote(
                writers, me, Fault.READ_AFTER_WRITE, lambda seen, *_: self._has(seen, CHANGED)
            )
            with self._each_granule(shadow) as (_, _, place):
                seen = code.load("i64", place)
                reader = code.let(f"and i64 {seen}, {_READER}")
                new = code.let(f"xor i1 {self._is_now(reader)}, true")
                with code.when(new):
                    code.store("i64", me, place)
                second = code.let(f"lshr i64 {seen}, {READER_BITS}")
                alone = code.let(f"icmp eq i64 {second}, 0")
                apart = code.let(f"sub i64 {me}, {reader}")
                other = code.let(f"icmp ne i64 {apart}, 0")
                with code.when(self._both(code.let(f"xor i1 {new}, true"), alone, other)):
                    far = code.let(
                        f"call i64 @llvm.umin.i64(i64 {apart}, i64 {(1 << (64 - READER_BITS)) - 1})"
                    )
                    high = code.let(f"shl i64 {far}, {READER_BITS}")
                    code.store("i64", code.let(f"or i64 {high}, {reader}"), place)

    def _changes(self, index: str, address: str) -> str:
        code = self._code
        held = code.load(self.kind, code.pointer(address) + ", align 1")
        new = code.load(self.kind, code.at("%values", self.kind, index))
        return code.let(f"icmp ne {self.kind} {held}, {new}")

    def _watch_stores(self) -> None:
        code, me = self._code, self._me()
        writers = code.field("%region", Region.WRITERS)
        with code.when(code.let(f"icmp ne i64 {writers}, 0")):
            self._no_other_wrote(
                writers, me, Fault.ATOMIC_BESIDE_STORE, lambda seen, *_: self._has(seen, ATOMIC)
            )
            self._no_other_wrote(
                writers, me, Fault.STORES, lambda seen, *lane: self._changes(*lane)
            )
            readers = code.field("%region", Region.READERS)
            with code.when(code.let(f"icmp ne i64 {readers}, 0")):
                with self._each_granule(readers) as (index, address, place):
                    seen = code.load("i64", place)
                    reader = code.let(f"and i64 {seen}, {_READER}")
                    second = code.let(f"lshr i64 {seen}, {READER_BITS}")
                    mine = code.let(f"icmp eq i64 {reader}, {me}")
                    later = code.let(f"add i64 {reader}, {second}")
                    who = code.let(f"select i1 {mine}, i64 {later}, i64 {reader}")
                    another = code.let(f"icmp ne i64 {who}, {me}")
                    changes = self._changes(index, address)
                    self._count(self._both(self._is_now(reader), another, changes), address, who)
                self._refuse(Fault.WRITE_AFTER_READ)
            with self._each_granule(writers) as (index, address, place):
                seen = code.load("i64", place)
                changes = code.let(f"zext i1 {self._changes(index, address)} to i64")
                mark = code.let(f"shl i64 {changes}, {CHANGED.bit_length() - 1}")
                before = code.let(f"lshr i64 {seen}, {SHIFT}")
                again = code.let(f"icmp eq i64 {before}, {me}")
                kept = code.let(f"select i1 {again}, i64 {seen}, i64 0")
                kept = code.let(f"and i64 {kept}, {CHANGED}")
                mark = code.let(f"or i64 {mark}, {kept}")
                number = code.let(f"or i64 {code.let(f'shl i64 {me}, {SHIFT}')}, {mark}")
                # What others have changed in this launch stays theirs: this store leaves it so.
                theirs = self._both(
                    self._is_now(before),
                    code.let(f"xor i1 {again}, true"),
                    self._has(seen, CHANGED),
                )
                code.store("i64", code.let(f"select i1 {theirs}, i64 {seen}, i64 {number}"), place)

    def _watch_atomics(self) -> None:
        """Atomics agree among themselves; beside another program's store they do not."""
        code, me = self._code, self._me()
        writers = code.field("%region", Region.WRITERS)
        with code.when(code.let(f"icmp ne i64 {writers}, 0")):
            self._no_other_wrote(
                writers,
                me,
                Fault.ATOMIC_BESIDE_STORE,
                lambda seen, *_: code.let(f"xor i1 {self._has(seen, ATOMIC)}, true"),
            )
            with self._each_granule(writers) as (_, _, place):
                number = code.let(f"or i64 {code.let(f'shl i64 {me}, {SHIFT}')}, {ATOMIC}")
                code.store("i64", number, place)
