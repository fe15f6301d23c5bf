"""Reads a block of PTX (`tl.inline_asm_elementwise`) into statements."""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.sanitizer.cpu import approximations
from harness.sanitizer.ir.graph import IROperation
from harness.sanitizer.llvm.number_formats import UnsupportedOnCpu

# Waits for the launch before, or releases the one after; launches here run one by one.
_LAUNCH_DEPENDENCY = re.compile(r"griddepcontrol\.(wait|launch_dependents);(\s*//.*)?")
_STATEMENT = re.compile(r"(?:@(!?)([%\w$]+)\s+)?([a-z][\w.]*)(?:\s+(.+))?")


@dataclass(frozen=True, slots=True)
class AssemblyStatement:
    predicate: str  # a register, or ""
    is_negated: bool
    opcode: str
    operands: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AssemblyBlock:
    """One `inline_asm_elementwise`: its statements, and the widths of its declared registers."""

    statements: tuple[AssemblyStatement, ...]
    widths: dict[str, int]

    def list_approximations(self) -> list[str]:
        return [
            statement.opcode
            for statement in self.statements
            if approximations.find_approximate_rule(statement.opcode) is not None
        ]


def is_launch_dependency(operation: IROperation) -> bool:
    return not operation.operands and bool(_LAUNCH_DEPENDENCY.fullmatch(_get_text(operation)))


def _get_text(operation: IROperation) -> str:
    text = operation.attributes.get("asm_string", "").strip('"').strip()
    return text.replace("\\0A", "\n").replace("\\09", "\t")


def parse_block(operation: IROperation) -> AssemblyBlock:
    text = re.sub(r"//[^\n]*", "", _get_text(operation))
    statements: list[AssemblyStatement] = []
    widths: dict[str, int] = {}
    for statement_text in re.split(r"[;{}]", text):
        words = " ".join(statement_text.split())
        if not words:
            continue
        if declared := re.fullmatch(r"\.reg \.(\w+) (.+)", words):
            bits = 1 if declared[1] == "pred" else int(declared[1][1:])
            widths |= dict.fromkeys((name.strip() for name in declared[2].split(",")), bits)
            continue
        match = _STATEMENT.fullmatch(words)
        if match is None:
            raise UnsupportedOnCpu(f"inline assembly: {words}")
        operands = tuple(name.strip() for name in (match[4] or "").split(",") if name.strip())
        statements.append(AssemblyStatement(match[2] or "", match[1] == "!", match[3], operands))
    return AssemblyBlock(tuple(statements), widths)


def get_group_size(operation: IROperation) -> int:
    """Return how many elements one run of the block takes of each operand."""
    return operation.get_int("packed_element", 1)
