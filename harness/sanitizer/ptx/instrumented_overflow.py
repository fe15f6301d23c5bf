"""Statements that follow 32-bit integers on their way into an address, beside the kernel's own.

A followed register `%r5` has the companion `%uft_r5`, its value in 64 bits without any overflow; a
register of 64 bits that depends on one has `%ufo_rd7`, the number of an overflow or 0. As in
the executor (`overflow_flow`) a difference counts where an integer is widened. Example:
behind `mad.lo.s32 %r5, %r1, %r2, %r3; cvt.s64.s32 %rd7, %r5;` the number is set if `%uft_r5` and
`%rd7` differ.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from harness.sanitizer.ptx.basic_blocks import split_statement
from harness.sanitizer.ptx.instrumented_kernel import InstrumentedSite
from harness.sanitizer.ptx.instrumented_records import make_guard
from harness.sanitizer.ptx.module_text import PtxText
from harness.sanitizer.ptx.operations import find_operation
from harness.sanitizer.ptx.overflow_flow import (
    analyze_overflow,
    has_true_value,
    is_narrowing,
    is_widening,
    reads_signed,
)
from harness.sanitizer.ptx.parser import PtxKernel, PtxStatement, is_number, parse_number
from harness.sanitizer.ptx.reader import read_kernel

REGISTERS = (
    ".reg .b64 %ufx<3>;", ".reg .pred %ufq<3>;", ".reg .b32 %ufn<2>;",
    ".reg .b64 %ufl;", ".reg .b64 %ufr;", ".reg .b32 %ufv;",
    "mov.b64 %ufl, 0;", "mov.b64 %ufr, 0;", "mov.b32 %ufv, 0;",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class StatementCode:
    """What goes in front of a statement and behind it."""

    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


def clean_name(register: str) -> str:
    return register.removeprefix("%").replace("@", "_s").replace("$", "_")


class OverflowInstrumentation:
    """The companions of one kernel. `overflows` are the operations that reports can name."""

    def __init__(
        self, module: PtxText, kernel: PtxKernel, overflows: list[InstrumentedSite]
    ) -> None:
        flow = analyze_overflow(read_kernel(module, kernel))
        self._overflows = overflows
        self.signs: dict[str, bool] = {}
        mixed = set()
        for value in flow.may_wrap:
            if (
                value.name
                and self.signs.setdefault(value.name, flow.signs[value]) != (flow.signs[value])
            ):
                mixed.add(value.name)
        for name in mixed:
            del self.signs[name]
        self.wide = {value.name for value in flow.wide if value.name}
        self.bit_complements = {value.name for value in flow.bit_complements}
        self.differences = {value.name for value in flow.differences}
        self._writers: dict[str, list[PtxStatement]] = defaultdict(list)
        for statement in kernel.statements:
            for name in split_statement(statement)[0]:
                self._writers[name].append(statement)
        self.names = {name: name for name in kernel.register_types}
        self.low_halves = {  # of registers that hold one value each
            result.name: half.name
            for result, half in flow.low_halves.items()
            if len(self._writers[result.name]) == len(self._writers[half.name]) == 1
        }

    @property
    def declarations(self) -> list[str]:
        lines = [*REGISTERS] if self.signs or self.wide else []
        for name in sorted(self.signs):
            lines += [f".reg .b64 %uft_{clean_name(name)};", f"mov.b64 {self.name_true(name)}, 0;"]
        for name in sorted(self.wide):
            lines += [f".reg .b32 {self.name_state(name)};", f"mov.b32 {self.name_state(name)}, 0;"]
        return lines

    def state_of(self, register: str) -> str | None:
        """Return the companion of an address: the number of an overflow that it depends on."""
        return self.name_state(register) if register in self.wide else None

    def rewrite(self, statement: PtxStatement, texts: dict[str, str]) -> StatementCode:
        """Return the code around a statement; `texts` are its registers as its scope has them."""
        results, operands = split_statement(statement)
        followed = [result for result in results if result in self.signs or result in self.wide]
        if not followed:
            return StatementCode()
        code = _Code(statement, texts, self)
        if len(followed) == len(results) == 1 and not operands[0].startswith("{"):
            if followed[0] in self.signs:
                code.write_true(followed[0], operands)
            else:
                code.write_state(followed[0], operands)
        else:
            for name in followed:
                if name in self.signs:
                    code.extend_result(name)
                else:
                    code.after.append(f"mov.b32 {self.name_state(name)}, 0;")
        guard = make_guard(statement, texts)
        return StatementCode(
            tuple(_add_guard(guard, line) for line in code.before),
            tuple(_add_guard(guard, line) for line in code.after),
        )

    def name_true(self, register: str) -> str:
        return f"%uft_{clean_name(register)}"

    def name_state(self, register: str) -> str:
        return f"%ufo_{clean_name(register)}"

    def number_site(self, register: str) -> int:
        """Return the number of the operation that made a register overflow, from 1 on.

        It is the nearest product or shift behind the register, or else the nearest operation.
        """
        found, is_exact = self._list_wrapping(register)
        best = next((one for one in found if find_operation(one.opcode).is_product), None)
        return self.number_statement((best or found[0]), "", is_exact)

    def number_statement(self, statement: PtxStatement, label: str, is_exact: bool = True) -> int:
        """Number an operation; `is_exact`: a report's numbers are its result and the true one."""
        lines = tuple((location.file, location.line) for location in statement.source.chain)
        size = 4 if is_exact else 0
        site = InstrumentedSite(lines, label or statement.opcode, size, statement.name)
        if site not in self._overflows:
            self._overflows.append(site)
        return 1 + self._overflows.index(site)

    def _list_wrapping(self, register: str) -> tuple[list[PtxStatement], bool]:
        found: list[PtxStatement] = []
        is_exact = True
        seen, waiting = {register}, [register]
        while waiting:
            for statement in self._writers[waiting.pop(0)]:
                row = find_operation(statement.opcode)
                if row.wraps:
                    found.append(statement)
                is_exact = is_exact and not row.keeps_difference
                for name in split_statement(statement)[1]:
                    if name in self.signs and name not in seen:
                        seen.add(name)
                        waiting.append(name)
        return found or self._writers[register], is_exact


def _add_guard(guard: str, line: str) -> str:
    """Run a line under the statement's predicate, unless the line includes it."""
    return line if line.startswith(("@", "setp.ne.and")) else guard + line


class _Code:
    """The code around one statement: in front of it, and behind it."""

    def __init__(
        self, statement: PtxStatement, texts: dict[str, str], owner: OverflowInstrumentation
    ) -> None:
        self.before: list[str] = []
        self.after: list[str] = []
        self._statement, self._texts, self._owner = statement, texts, owner
        self._true, self._state = owner.name_true, owner.name_state
        self._opcode, self._row = statement.opcode, find_operation(statement.opcode)

    def _text(self, name: str) -> str:
        return self._texts.get(name, name)

    # 32 bits

    def _is_followed(self, name: str) -> bool:
        return name in self._owner.signs

    def _is_plain(self, name: str) -> bool:
        return is_number(name) or (name in self._owner.names and not self._is_followed(name))

    def _read_true(self, name: str, signed: bool, temporary: str) -> str:
        if self._is_followed(name):
            return self._true(name)
        if is_number(name):
            wrapped = parse_number(name) & 0xFFFFFFFF
            return str(wrapped - (1 << 32) if wrapped >> 31 else wrapped)
        kinds = "s64.s32" if signed else "u64.u32"
        self.before.append(f"cvt.{kinds} {temporary}, {self._text(name)};")
        return temporary

    def extend_result(self, name: str, target: str = "") -> None:
        kinds = "s64.s32" if self._owner.signs[name] else "u64.u32"
        self.after.append(f"cvt.{kinds} {target or self._true(name)}, {self._text(name)};")

    def write_true(self, result: str, operands: list[str]) -> None:
        opcode, row, true = self._opcode, self._row, self._true(result)
        signed = self._owner.signs[result]
        values = operands[: row.values]
        if is_narrowing(self._statement):
            self.before.append(f"mov.b64 {true}, {self._text(operands[0])};")
            return
        if opcode == "or" and result in self._owner.differences:
            self.after.append(f"cvt.s64.s32 {true}, {self._text(result)};")
            return
        is_exact = has_true_value(self._statement)
        if opcode == "not" and result in self._owner.bit_complements:
            is_exact = False
        if not is_exact or not all(self._is_plain(v) or self._is_followed(v) for v in values):
            self.extend_result(result)
            return
        if row.keeps_difference:
            self._carry_difference(result, values)
            return
        is_product = row.is_product and opcode != "shl"
        if is_product and all(self._is_plain(value) for value in values[:2]):
            kind = "s32" if signed else "u32"
            left, right = (self._text(value) for value in values[:2])
            if is_number(left):
                left, right = right, left
            if not is_number(left):
                product = "%ufx0" if opcode == "mad" else true
                self.before.append(f"mul.wide.{kind} {product}, {left}, {right};")
                if opcode == "mad":
                    third = self._read_true(values[2], signed, "%ufx1")
                    self.before.append(f"add.s64 {true}, %ufx0, {third};")
                return
        read = [
            self._read_true(value, signed, f"%ufx{place}") for place, value in enumerate(values)
        ]
        if row.true_ptx:
            self.before.append(f"{row.true_ptx} {true}, {', '.join(read)};")
        elif opcode == "mad":
            self.before.append(f"mul.lo.s64 %ufx0, {read[0]}, {read[1]};")
            self.before.append(f"add.s64 {true}, %ufx0, {read[2]};")
        elif opcode == "selp":
            self.before.append(f"selp.b64 {true}, {read[0]}, {read[1]}, {self._text(operands[2])};")
        else:
            self._shift_left(result, read[0], operands[1])

    def _carry_difference(self, result: str, values: list[str]) -> None:
        """A quotient or a shifted number is right if the number was; else the difference stays."""
        true = self._true(result)
        if not self._is_followed(values[0]):
            self.extend_result(result)
            return
        first = values[0]
        kinds = "s64.s32" if self._owner.signs[first] else "u64.u32"
        self.before.append(f"cvt.{kinds} %ufx0, {self._text(first)};")
        self.before.append(f"setp.eq.s64 %ufq2, {self._true(first)}, %ufx0;")
        self.extend_result(result, "%ufx0")
        self.after.append(f"selp.b64 {true}, %ufx0, {self._true(first)}, %ufq2;")

    def _shift_left(self, result: str, value: str, amount: str) -> None:
        true = self._true(result)
        if is_number(amount) and 0 <= parse_number(amount) < 32:
            self.before.append(f"shl.b64 {true}, {value}, {amount};")
        elif is_number(amount):
            self.extend_result(result)
        else:
            self.before.append(f"setp.gt.u32 %ufq2, {self._text(amount)}, 31;")
            self.before.append(f"shl.b64 {true}, {value}, {self._text(amount)};")
            self.extend_result(result, "%ufx0")
            self.after.append(f"selp.b64 {true}, %ufx0, {true}, %ufq2;")

    # 64 bits

    def write_state(self, result: str, operands: list[str]) -> None:
        state = self._state(result)
        values = operands[: self._row.values]
        whole = self._owner.low_halves.get(result)
        if whole is not None:
            number = self._owner.number_statement(self._statement, "narrowed")
            self.after.append(f"cvt.u32.u64 %ufn0, {self._text(whole)};")
            self.after.append("cvt.s64.s32 %ufx0, %ufn0;")
            self._compare(self._text(whole), "%ufx0", number)
            self.after.append(f"mov.b32 {state}, %ufn1;")
            return
        parts: list[str] = []
        if is_widening(self._statement):
            narrow = values[:2]
            values = values[len(narrow) :]
            followed = [name for name in dict.fromkeys(narrow) if self._is_followed(name)]
            for place, name in enumerate(followed):
                kind = "s64.s32" if reads_signed(self._statement) else "u64.u32"
                self.after.append(f"cvt.{kind} %ufx0, {self._text(name)};")
                number = self._owner.number_site(name)
                self._compare(self._true(name), "%ufx0", number)
                if place == 0:
                    self.after.append("mov.b32 %ufn0, %ufn1;")
                else:
                    self.after.append("max.u32 %ufn0, %ufn0, %ufn1;")
            parts += ["%ufn0"] * bool(followed)
        states = [self._state(value) for value in values if value in self._owner.wide]
        if self._opcode == "selp":
            both = [self._state(value) if value in self._owner.wide else "0" for value in values]
            self.after.append(f"selp.b32 {state}, {both[0]}, {both[1]}, {self._text(operands[2])};")
            return
        parts += states
        if not parts:
            self.after.append(f"mov.b32 {state}, 0;")
        elif len(parts) == 1:
            self.after.append(f"mov.b32 {state}, {parts[0]};")
        else:
            self.after.append(f"max.u32 {state}, {parts[0]}, {parts[1]};")
            self.after += [f"max.u32 {state}, {state}, {part};" for part in parts[2:]]

    def _compare(self, true: str, wrapped: str, number: int) -> None:
        """Set %ufn1 to the number if both differ, and keep both for the report."""
        word = make_guard(self._statement, self._texts).strip().removeprefix("@")
        combine, condition = (".and", f", {word}") if word else ("", "")
        self.after += [
            f"setp.ne{combine}.s64 %ufq2, {true}, {wrapped}{condition};",
            f"selp.b32 %ufn1, {number}, 0, %ufq2;",
            f"@%ufq2 mov.b64 %ufl, {true};",
            f"@%ufq2 mov.b64 %ufr, {wrapped};",
            f"@%ufq2 mov.b32 %ufv, {number};",
        ]
