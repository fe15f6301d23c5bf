"""PTX in a kernel (`tl.inline_asm_elementwise`), instruction by instruction.

A block of assembly gets registers with one element, or with several narrow ones packed into one,
and gives others back. Registers are bits here; an instruction reads them as its type says. Example:
`{ .reg .pred p; setp.gt.f32 p, $1, 20.; @p mov.f32 $0, $1; @!p ex2.approx.ftz.f32 $0, $1; }` is a
comparison, and two values of `$0` between which it selects. An instruction that is not in the table
is refused by name, as is one that rounds otherwise than to the nearest.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

from harness.sanitizer.cpu import approximations
from harness.sanitizer.cpu.assembly_parser import (
    AssemblyBlock,
    AssemblyStatement,
    get_group_size,
    parse_block,
)
from harness.sanitizer.cpu.exact_intrinsics import MAXIMUM, MINIMUM, ROUNDED_OPERATIONS
from harness.sanitizer.ir.graph import IROperation
from harness.sanitizer.llvm.number_formats import (
    FLOAT_SUFFIXES,
    PTX_COMPARISONS,
    PTX_FLOAT8,
    UnsupportedOnCpu,
    emit_narrowing,
    emit_widening,
    llvm_type,
    llvm_type_bits,
    widened_type,
)
from harness.sanitizer.llvm.text import LlvmFunction

_CONSTRAINT_BITS = {"b": 1, "h": 16, "r": 32, "f": 32, "l": 64, "d": 64}
_PTX_FLOATS = {"f16": "f16", "bf16": "bf16", "f32": "f32", "f64": "f64"}
_PACKED = {"f16": "f16", "bf16": "bf16", **PTX_FLOAT8}
# Results of these are what the rule says, rounded to the nearest; a third word is a modifier.
_FLOAT_RULES = ROUNDED_OPERATIONS | {
    "neg": "fneg {t} {0}",
    "abs": "call {t} @llvm.fabs.{s}({t} {0})",
    "min": MINIMUM,
    "max": MAXIMUM,
}
# Without a word for their rounding these mean another operation.
_NEEDS_ROUNDING = frozenset(("div", "fma", "sqrt", "rcp"))
_INTEGER_RULES = {
    "add": "add {t} {0}, {1}",
    "sub": "sub {t} {0}, {1}",
    "mul.lo": "mul {t} {0}, {1}",
    "and": "and {t} {0}, {1}",
    "or": "or {t} {0}, {1}",
    "xor": "xor {t} {0}, {1}",
    "not": "xor {t} {0}, -1",
}


def emit_block(
    code: LlvmFunction, operation: IROperation, groups: list[list[str]]
) -> list[list[str]]:
    """Emit a block on a group of each operand; return a group of each result."""
    block = parse_block(operation)
    run = _BlockRun(code, block)
    constraints = [
        word.strip(' =&"')[-1:]
        for word in operation.attributes.get("constraints", "").strip('"').split(",")
        if word.strip() and not word.strip().startswith("~")
    ]
    size, number = get_group_size(operation), 0
    places: list[tuple[str, int, list[str]]] = []
    for value in (*operation.results, *operation.operands):
        kind = llvm_type(value.type.element)
        per_register = min(size, max(1, 32 // llvm_type_bits(kind)))
        names = [f"${number + place}" for place in range(-(-size // per_register))]
        number += len(names)
        places.append((kind, per_register, names))
    if number > len(constraints):
        raise UnsupportedOnCpu(f"inline assembly: {len(constraints)} constraints for {number}")
    for place, constraint in enumerate(constraints):
        if constraint not in _CONSTRAINT_BITS:
            raise UnsupportedOnCpu(f"inline assembly: the constraint {constraint}")
        run.declare(f"${place}", _CONSTRAINT_BITS[constraint])
    count = len(operation.results)
    for (kind, per_register, names), group in zip(places[count:], groups, strict=True):
        for place, name in enumerate(names):
            run.pack(name, kind, group[place * per_register : (place + 1) * per_register])
    for statement in block.statements:
        run.emit(statement)
    return [
        [run.unpack(names[lane // per_register], kind, lane % per_register) for lane in range(size)]
        for kind, per_register, names in places[:count]
    ]


class _BlockRun:
    """The registers of a block while it is emitted: bits of a known width."""

    def __init__(self, code: LlvmFunction, block: AssemblyBlock) -> None:
        self._code, self._bits = code, dict[str, str]()
        self._widths = dict(block.widths)

    def declare(self, name: str, width: int) -> None:
        self._widths[name] = width

    def pack(self, name: str, kind: str, values: list[str]) -> None:
        """Put elements into a register, the first one lowest."""
        code, width, bits = self._code, self._widths[name], llvm_type_bits(kind)
        total = "0"
        for place, value in enumerate(values):
            number = value if kind[0] == "i" else code.let(f"bitcast {kind} {value} to i{bits}")
            number = self._resize(number, bits, width)
            if place:
                number = code.let(f"shl i{width} {number}, {place * bits}")
            total = number if not place else code.let(f"or i{width} {total}, {number}")
        self._bits[name] = total

    def unpack(self, name: str, kind: str, place: int) -> str:
        code, width, bits = self._code, self._widths[name], llvm_type_bits(kind)
        number = self._read_bits(name, width)
        if place:
            number = code.let(f"lshr i{width} {number}, {place * bits}")
        number = self._resize(number, width, bits)
        return number if kind[0] == "i" else code.let(f"bitcast i{bits} {number} to {kind}")

    def _resize(self, number: str, width: int, target: int) -> str:
        if width == target:
            return number
        word = "trunc" if width > target else "zext"
        return self._code.let(f"{word} i{width} {number} to i{target}")

    def _read_bits(self, operand: str, width: int) -> str:
        if operand in self._widths:
            return self._resize(self._bits.get(operand, "0"), self._widths[operand], width)
        if match := re.fullmatch(r"0[fF]([0-9a-fA-F]{8})|0[dD]([0-9a-fA-F]{16})", operand):
            return str(int(match[1] or match[2], 16))
        if re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|\d+)U?", operand):
            return str(int(operand.rstrip("U"), 0))
        raise UnsupportedOnCpu(f"inline assembly: the operand {operand}")

    def _write(self, statement: AssemblyStatement, number: str, width: int) -> None:
        name, code = statement.operands[0], self._code
        if name not in self._widths:
            raise UnsupportedOnCpu(f"inline assembly: the register {name}")
        target = self._widths[name]
        number = self._resize(number, width, target)
        if statement.predicate:
            holds = self._read_bits(statement.predicate, 1)
            if statement.is_negated:
                holds = code.let(f"xor i1 {holds}, true")
            before = self._bits.get(name, "0")
            number = code.let(f"select i1 {holds}, i{target} {number}, i{target} {before}")
        self._bits[name] = number

    # Floats

    def _read_float(self, operand: str, element: str) -> str:
        """Read an operand as a float, widened to a type that LLVM computes with."""
        kind, code = llvm_type(element), self._code
        bits = llvm_type_bits(kind)
        if operand not in self._widths and re.fullmatch(r"-?\d*\.\d*(e[-+]?\d+)?", operand):
            form, word = ("<d", "<Q") if element == "f64" else ("<f", "<I")
            [number] = struct.unpack(word, struct.pack(form, float(operand)))
            value = str(number)
            element, kind, bits = (
                ("f64", "double", 64) if element == "f64" else ("f32", "float", 32)
            )
        else:
            value = self._read_bits(operand, bits)
        if kind[0] != "i":
            value = code.let(f"bitcast i{bits} {value} to {kind}")
        return emit_widening(code, value, element)[0]

    def _write_float(
        self, statement: AssemblyStatement, value: str, kind: str, element: str
    ) -> None:
        self._write(
            statement, self._to_bits(value, kind, element), llvm_type_bits(llvm_type(element))
        )

    def _to_bits(self, value: str, kind: str, element: str) -> str:
        narrow, target = emit_narrowing(self._code, value, kind, element), llvm_type(element)
        if target[0] == "i":
            return narrow
        return self._code.let(f"bitcast {target} {narrow} to i{llvm_type_bits(target)}")

    # Statements

    def emit(self, statement: AssemblyStatement) -> None:
        opcode, _, modifiers = statement.opcode.partition(".")
        words = modifiers.split(".") if modifiers else []
        rule = approximations.find_approximate_rule(statement.opcode)
        emit = _STATEMENT_EMITTERS.get(opcode)
        try:
            if rule is not None:
                self._emit_approximation(statement, rule, words)
            elif words and words[-1].endswith("x2") and opcode != "cvt":
                self._emit_halves(statement, opcode, words)
            elif emit is not None:
                emit(self, statement, words)
            elif words and words[-1] in _PTX_FLOATS and opcode in _FLOAT_RULES:
                self._emit_float(statement, opcode, words)
            else:
                self._emit_integer(statement, opcode, words)
        except (IndexError, KeyError, ValueError):
            raise UnsupportedOnCpu(
                f"inline assembly: {statement.opcode} {', '.join(statement.operands)}"
            ) from None

    def _emit_approximation(
        self, statement: AssemblyStatement, rule: str, words: list[str]
    ) -> None:
        element = words[-1].removesuffix("x2")
        if words[-1].endswith("x2"):
            raise KeyError(words[-1])
        operands = [self._to_float32(operand, element) for operand in statement.operands[1:]]
        value = approximations.emit_approximation(self._code, rule, operands, "ftz" in words)
        self._write_float(statement, value, "float", element)

    def _to_float32(self, operand: str, element: str) -> str:
        value = self._read_float(operand, element)
        return value if element != "f16" else self._code.let(f"fpext half {value} to float")

    def _compute_float(self, opcode: str, words: list[str], values: list[str], element: str) -> str:
        """Compute one rounded operation on widened values, and return bits of the element."""
        rest = [word for word in words[:-1] if word not in ("rn", "ftz")]
        rounds = "rn" in words
        if rest or (opcode in _NEEDS_ROUNDING and not rounds):
            raise KeyError(opcode)
        kind = widened_type(element)
        wanted = 1 + max(int(index) for index in re.findall(r"\{(\d)\}", _FLOAT_RULES[opcode]))
        if len(values) != wanted:
            raise ValueError(opcode)
        if "ftz" in words:
            if kind != "float":
                raise KeyError("ftz")
            values = [approximations.emit_flush(self._code, value) for value in values]
        rule = _FLOAT_RULES[opcode].format(*values, t=kind, s=FLOAT_SUFFIXES[kind])
        value = self._code.let(rule)
        if "ftz" in words:
            value = approximations.emit_flush(self._code, value)
        return self._to_bits(value, kind, element)

    def _emit_float(self, statement: AssemblyStatement, opcode: str, words: list[str]) -> None:
        element = _PTX_FLOATS[words[-1]]
        values = [self._read_float(operand, element) for operand in statement.operands[1:]]
        bits = self._compute_float(opcode, words, values, element)
        self._write(statement, bits, llvm_type_bits(llvm_type(element)))

    def _emit_halves(self, statement: AssemblyStatement, opcode: str, words: list[str]) -> None:
        """Emit an operation on two 16-bit floats in one register."""
        element, code = _PTX_FLOATS[words[-1].removesuffix("x2")], self._code
        words = [*words[:-1], element]
        halves = []
        for shift in (0, 16):
            values = []
            for operand in statement.operands[1:]:
                bits = self._read_bits(operand, 32)
                bits = code.let(f"lshr i32 {bits}, {shift}")
                value = code.let(f"trunc i32 {bits} to i16")
                if element == "f16":
                    value = code.let(f"bitcast i16 {value} to half")
                values.append(emit_widening(code, value, element)[0])
            halves.append(
                code.let(f"zext i16 {self._compute_float(opcode, words, values, element)} to i32")
            )
        high = code.let(f"shl i32 {halves[1]}, 16")
        self._write(statement, code.let(f"or i32 {high}, {halves[0]}"), 32)

    def _emit_integer(self, statement: AssemblyStatement, opcode: str, words: list[str]) -> None:
        width, is_signed = int(words[-1][1:]), words[-1][0] == "s"
        name = ".".join([opcode, *words[:-1]])
        values = [self._read_bits(operand, width) for operand in statement.operands[1:]]
        if name in ("shl", "shr"):
            word = "shl" if name == "shl" else "ashr" if is_signed else "lshr"
            amount = self._read_bits(statement.operands[2], 32)
            if not amount.isdigit() or int(amount) >= width:
                raise ValueError(name)
            number = self._code.let(f"{word} i{width} {values[0]}, {amount}")
        elif name in ("min", "max"):
            call = f"@llvm.{'s' if is_signed else 'u'}{name}.i{width}"
            number = self._code.let(
                f"call i{width} {call}(i{width} {values[0]}, i{width} {values[1]})"
            )
        else:
            number = self._code.let(_INTEGER_RULES[name].format(*values, t=f"i{width}"))
        self._write(statement, number, width)

    def _emit_move(self, statement: AssemblyStatement, words: list[str]) -> None:
        width = 1 if words[-1] == "pred" else int(words[-1].removeprefix("b")[1:] or 0)
        width = width if words[-1][0] != "b" else int(words[-1][1:])
        [source] = statement.operands[1:]
        if words[-1] in _PTX_FLOATS and source not in self._widths:
            value = self._read_float(source, words[-1])
            self._write_float(statement, value, widened_type(words[-1]), words[-1])
            return
        self._write(statement, self._read_bits(source, width), width)

    def _emit_comparison(self, statement: AssemblyStatement, words: list[str]) -> None:
        comparison, kind = words[0], words[-1]
        if len(words) != 2:
            raise KeyError(comparison)
        left, right = statement.operands[1:]
        if kind in _PTX_FLOATS:
            values = [self._read_float(operand, kind) for operand in (left, right)]
            test = f"{PTX_COMPARISONS[comparison]} {widened_type(kind)}"
            holds = self._code.let(f"fcmp {test} {values[0]}, {values[1]}")
        else:
            width = int(kind[1:])
            values = [self._read_bits(operand, width) for operand in (left, right)]
            sign = "" if comparison in ("eq", "ne") else "s" if kind[0] == "s" else "u"
            holds = self._code.let(f"icmp {sign}{comparison} i{width} {values[0]}, {values[1]}")
        self._write(statement, holds, 1)

    def _emit_selection(self, statement: AssemblyStatement, words: list[str]) -> None:
        width = int(re.sub(r"\D", "", words[-1]))
        first, second = (self._read_bits(operand, width) for operand in statement.operands[1:3])
        holds = self._read_bits(statement.operands[3], 1)
        number = self._code.let(f"select i1 {holds}, i{width} {first}, i{width} {second}")
        self._write(statement, number, width)

    def _emit_conversion(self, statement: AssemblyStatement, words: list[str]) -> None:
        *how, target, source = words
        code, operands = self._code, statement.operands[1:]
        element = _PACKED.get(target.removesuffix("x2"))
        if element is not None and target.endswith("x2") and source == "f32":
            if sorted(how) != (["rn", "satfinite"] if target[0] == "e" else ["rn"]):
                raise KeyError(target)
            high, low = (
                self._to_bits(self._read_float(operand, "f32"), "float", element)
                for operand in operands
            )
            bits = llvm_type_bits(llvm_type(element))
            numbers = [code.let(f"zext i{bits} {half} to i{2 * bits}") for half in (high, low)]
            high = code.let(f"shl i{2 * bits} {numbers[0]}, {bits}")
            self._write(statement, code.let(f"or i{2 * bits} {high}, {numbers[1]}"), 2 * bits)
        elif source == "f32" and target in ("f16", "bf16") and how == ["rn"]:
            [operand] = operands
            self._write_float(statement, self._read_float(operand, "f32"), "float", target)
        elif target == "f32" and source in ("f16", "bf16") and not how:
            [operand] = operands
            self._write_float(statement, self._to_float32(operand, source), "float", "f32")
        elif target[0] in "us" and source[0] in "us" and not how:
            [operand] = operands
            width, wide = int(source[1:]), int(target[1:])
            number = self._read_bits(operand, width)
            if wide > width and source[0] == "s":
                number = code.let(f"sext i{width} {number} to i{wide}")
                width = wide
            self._write(statement, self._resize(number, width, wide), wide)
        else:
            raise KeyError(target)


_STATEMENT_EMITTERS: dict[str, Callable[[_BlockRun, AssemblyStatement, list[str]], None]] = {
    "mov": _BlockRun._emit_move,
    "setp": _BlockRun._emit_comparison,
    "selp": _BlockRun._emit_selection,
    "cvt": _BlockRun._emit_conversion,
}
