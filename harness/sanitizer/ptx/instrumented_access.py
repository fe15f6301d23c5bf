"""An access of global memory with its checks in front, in PTX: what `checks` asks of it.

The place of an access is checked first: it is reported and skipped, and its results are 0. What is
asked after that only reports. The code of a report stands at the kernel's end, in a scope right
behind the question, since the labels of a scope are known inside of it alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from harness.sanitizer.checks.bounds import measure_limit
from harness.sanitizer.checks.words import Lane, Mark, Question, Region
from harness.sanitizer.gpu.report_assembly import RecordField
from harness.sanitizer.ptx import instrumented_reads
from harness.sanitizer.ptx.basic_blocks import split_statement
from harness.sanitizer.ptx.check_text import CheckText
from harness.sanitizer.ptx.global_accesses import GlobalAccess
from harness.sanitizer.ptx.instrumented_entries import PtxRaceEntries, RaceInstrumentation
from harness.sanitizer.ptx.instrumented_kernel import (
    CHECK_HEADER,
    ENTRY_BYTES,
    CheckEntry,
)
from harness.sanitizer.ptx.instrumented_records import (
    PARAMETER,
    make_guard,
    select_memory_slot,
    select_place_slot,
    write_record,
)
from harness.sanitizer.ptx.parser import bits_of_type
from harness.sanitizer.violations.kinds import ViolationKind, to_word_bit


class CheckedGlobalAccess(PtxRaceEntries):
    """The checks of one access: `code` in front of it, `reports` at the kernel's end."""

    may_order = False

    def __init__(
        self,
        access: GlobalAccess,
        number: int,
        names: dict[str, str],
        state: str | None,
        races: RaceInstrumentation | None,
        kinds: frozenset[ViolationKind],
        entries: dict[CheckEntry, int],
        register_types: dict[str, str],
        is_in_scope: bool,
    ) -> None:
        """`state`: the register that says whether a number in its address overflowed.

        `entries`: the tensors in the parameter of the checks, which this access adds to.
        """
        super().__init__(races)
        self.access, self.number, self.names, self.verb = access, number, names, access.verb
        self.kinds, self.code, self.reports = kinds, CheckText(), list[str]()
        self.guard = make_guard(access.statement, names)
        self._state, self._entries, self._register_types = state, entries, register_types
        self._is_in_scope = is_in_scope
        self._is_wrong: list[str] = []  # predicates: why the access is skipped
        self._after: str | None = None

    def surround(self, text: str) -> list[str]:
        """Return the access itself with its checks in front."""
        base = self.names.get(self.access.base, self.access.base)
        lines = [f"add.s64 %ufa, {base}, {self.access.offset};", *self.code.lines, text]
        return lines if self._after is None else [*lines, f"{self._after}:"]

    def branch_to(self, condition: str, label: str, back: str, lines: list[str]) -> None:
        """Write code for where a condition holds: at the kernel's end, in a scope right here."""
        if self._is_in_scope:
            self.code.emit(f"@!{condition} bra {back};", *lines)
        else:
            self.reports += [f"{label}:", *lines]
            self.code.emit(f"@{condition} bra {label};")
        self.code.emit(f"{back}:")

    # Where it goes

    @contextmanager
    def skip_reported_lanes(self) -> Iterator[None]:
        yield
        if not self._is_wrong:
            return
        code, number = self.code, self.number
        wrong, *others = self._is_wrong
        for other in others:
            wrong = code.either(wrong, other)
        own, self._after = f"$UF_A{number}", f"$UF_B{number}"
        report = [*self._write_place_record(), f"bra {self._after};"]
        self.branch_to(code.apply_guard(self.guard, wrong), f"$UF_R{number}", own, report)
        self._is_wrong = []

    def marks(self, mark: Mark) -> Iterator[Question[str]]:
        if mark is Mark.OVERFLOWED and self._state is not None:
            yield lambda lane: self.code.ask("setp.ne.u32", str(self._state), 0)
        elif mark is Mark.UNINITIALIZED and instrumented_reads.is_checked(self.access):
            yield self._is_poison

    def regions(self) -> list[Region[str]]:
        """Load the tensor of each parameter that the address may come from, and its limit."""
        code, access, regions = self.code, self.access, []
        dynamic = access.dynamic_size
        size = code.compute("cvt.u64.u32", self.names.get(dynamic, dynamic)) if dynamic else ""
        for place in range(len(access.roots)):
            offset = self._find_entry_offset(place, 0 if dynamic else access.size)
            start = code.compute("ld.param.u64", f"[{PARAMETER}+{offset}]")
            limit = code.compute("ld.param.u64", f"[{PARAMETER}+{offset + 8}]")
            if dynamic:  # the limit of no bytes is the tensor's size plus one
                limit = measure_limit(code, limit, size)
            regions.append(Region(start, limit))
        self._dynamic_size = size
        return regions

    def _find_entry_offset(self, place: int, size: int) -> int:
        """Return where the parameter of the checks has a tensor of the access."""
        entry = CheckEntry(self.access.roots, place, size)
        return CHECK_HEADER + ENTRY_BYTES * self._entries.setdefault(entry, len(self._entries))

    def report_place(self, kind: ViolationKind, question: Question[str]) -> None:
        wrong = question(Lane("%ufa", "%ufa"))
        if kind is ViolationKind.OUT_OF_BOUNDS and self._dynamic_size:  # no bytes go nowhere
            wrong = self.code.both(wrong, self.code.ask("setp.ne.u64", self._dynamic_size, 0))
        self._is_wrong.append(wrong)

    def _write_place_record(self) -> list[str]:
        """Write a record and set the results to 0; a launch without a table runs as it would."""
        state, number = self._state, self.number
        word = [f"mov.b32 %ufw, {to_word_bit(ViolationKind.OUT_OF_BOUNDS)};"]
        operands: list[str] = []
        if state is not None:
            word += [f"setp.ne.u32 %ufo, {state}, 0;", f"selp.b32 %ufw, {state}, %ufw, %ufo;"]
            operands = [
                f"setp.eq.u32 %ufo, %ufv, {state};",
                "selp.b64 %ufd, %ufl, 0, %ufo;",
                f"st.volatile.global.u64 [%ufg+{RecordField.LEFT}], %ufd;",
                "selp.b64 %ufd, %ufr, 0, %ufo;",
                f"st.volatile.global.u64 [%ufg+{RecordField.RIGHT}], %ufd;",
            ]
        has_memory_checks = ViolationKind.UNINITIALIZED_READ in self.kinds or bool(self._races)
        slot, own, end = (
            select_place_slot(number, has_memory_checks),
            f"$UF_A{number}",
            f"$UF_E{number}",
        )
        return [
            *write_record(number, slot, own, end, "%ufa", operands, word),
            *(
                f"mov.b{bits_of_type(self._register_types[name])} {self.names.get(name, name)}, 0;"
                for name in split_statement(self.access.statement)[0]
                if name in self._register_types
            ),
        ]

    # What is there

    def report(self, kind: ViolationKind, question: Question[str]) -> None:
        found, back = question(Lane("%ufa", "%ufa")), f"$UF_V{self.number}"
        offset = None
        if len(self.access.roots) == 1:
            offset = self._find_entry_offset(0, self.access.size)
        confirm = instrumented_reads.confirm_poison(self.access, back, offset)
        word, slot = f"mov.b32 %ufw, {to_word_bit(kind)};", select_memory_slot(self.number)
        end = f"$UF_G{self.number}"
        record = write_record(self.number, slot, back, end, "%ufe", [], [word])
        self.branch_to(found, f"$UF_U{self.number}", back, [*confirm, *record, f"bra {back};"])

    def _is_poison(self, lane: Lane[str]) -> str:
        self.code.emit(*instrumented_reads.write_condition(self.access, self.guard, self.names))
        return "%ufp"

    def clear_mark(self, mark: Mark) -> None:
        """Do nothing: an update replaces the poison itself."""
