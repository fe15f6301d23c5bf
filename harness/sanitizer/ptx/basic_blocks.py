"""Splits a kernel's statements into basic blocks, and finds the registers that merge at each.

A predicated instruction becomes a block of its own with a branch around it, a jump table a chain of
comparisons.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from harness.sanitizer.ir.graph import SourceLocation
from harness.sanitizer.ptx.operations import find_operation
from harness.sanitizer.ptx.parser import PtxKernel, PtxStatement, parse_number

_NOWHERE = SourceLocation()
_ADDRESS = re.compile(r"^\[\s*([%\w$@.]+)\s*(?:\+\s*(-?\w+))?\s*\]$")


@dataclass(slots=True)
class BasicBlock:
    """Statements without a branch into or out of them; the last may be a branch."""

    label: str
    statements: list[PtxStatement] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)  # where its end goes: true, false
    condition: str = ""
    is_negated: bool = False
    jump_register: tuple[str, int] | None = None  # a comparison of a jump table
    source: SourceLocation = _NOWHERE


def split_statement(statement: PtxStatement) -> tuple[list[str], list[str]]:
    """Return the texts of a statement's results and of its operands."""
    operands = list(statement.operands)
    if not find_operation(statement.opcode).has_result(statement):
        return [], operands
    return split_group(operands[0]), operands[1:]


def split_group(text: str) -> list[str]:
    if text.startswith("{"):
        return [name.strip() for name in text[1:-1].split(",")]
    if "|" in text:
        return [name.strip() for name in text.split("|")]
    return [text]


def split_address(text: str) -> tuple[str, int] | None:
    """Return the base and the offset of `[%rd1+16]`; None for any other operand."""
    match = _ADDRESS.match(text)
    if match is None:
        return None
    return match[1], parse_number(match[2]) if match[2] else 0


class BasicBlocks:
    """The blocks of one kernel that can be reached, each after its only predecessor."""

    def __init__(self, kernel: PtxKernel) -> None:
        self._kernel = kernel
        self.blocks: dict[str, BasicBlock] = {}
        self._split_blocks()
        self.order = self._order_blocks()
        self.predecessors = self._find_predecessors()

    def _split_blocks(self) -> None:
        kernel = self._kernel
        names: dict[int, list[str]] = {}
        for name, place in kernel.labels.items():
            names.setdefault(place, []).append(name)
        self._aliases: dict[str, str] = {}
        count = 0

        def start_block(label: str) -> BasicBlock:
            self.blocks[label] = BasicBlock(label)
            return self.blocks[label]

        def make_label() -> str:
            nonlocal count
            count += 1
            return f"b{count}"

        entry = start_block("entry")
        block: BasicBlock | None = entry
        if 0 in names:  # an entry block has no predecessor
            entry.targets = [names[0][0]]
            block = None
        for place, statement in enumerate(kernel.statements):
            if place in names:
                for other in names[place]:
                    self._aliases[other] = names[place][0]
                if block is not None:
                    block.targets = [names[place][0]]
                block = start_block(names[place][0])
            if block is None:
                block = start_block(make_label())  # unreachable
            block.source = statement.source
            if statement.opcode == "bra":
                block.targets = [statement.operands[-1]]
                block.condition, block.is_negated = statement.predicate, statement.is_negated
                if statement.predicate:
                    following = make_label()
                    block.targets.append(following)
                    block = start_block(following)
                else:
                    block = None
            elif statement.opcode == "brx":
                listed = kernel.branch_targets[statement.operands[-1]]
                for number, target in enumerate(listed[:-1]):
                    following = make_label()
                    block.jump_register = statement.operands[0], number
                    block.targets = [target, following]
                    block.source = statement.source
                    block = start_block(following)
                block.targets = [listed[-1]]
                block.source = statement.source
                block = None
            elif statement.predicate:
                inner, following = make_label(), make_label()
                block.condition, block.is_negated = statement.predicate, statement.is_negated
                block.targets = [inner, following]
                block = start_block(inner)
                block.source = statement.source
                block.statements.append(statement)
                if not find_operation(statement.opcode).ends_thread:
                    block.targets = [following]
                block = start_block(following)
            else:
                block.statements.append(statement)
                if find_operation(statement.opcode).ends_thread:
                    block = None
        end = len(kernel.statements)
        for name in names.get(end, ()):
            self._aliases[name] = names[end][0]
        if end in names:
            if block is not None:
                block.targets = [names[end][0]]
            start_block(names[end][0])
        for block in self.blocks.values():
            block.targets = [self._aliases.get(target, target) for target in block.targets]

    def _order_blocks(self) -> list[str]:
        """Order the reachable blocks so that each follows its only predecessor."""
        order: list[str] = []
        seen = {"entry"}
        stack = [("entry", iter(self.blocks["entry"].targets))]
        while stack:
            label, targets = stack[-1]
            for target in targets:
                if target not in seen:
                    seen.add(target)
                    stack.append((target, iter(self.blocks[target].targets)))
                    break
            else:
                order.append(label)
                stack.pop()
        return order[::-1]

    def _find_predecessors(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {label: [] for label in self.order}
        for label in self.order:
            for target in self.blocks[label].targets:
                found[target].append(label)
        return found

    def find_merged_registers(self) -> dict[str, list[str]]:
        """Find the registers that are arguments of each block.

        They are live there and either written at several places or read where no write precedes.
        """
        uses: dict[str, set[str]] = {}
        writes: dict[str, set[str]] = {}
        counts: dict[str, int] = {}
        for label in self.order:
            used: set[str] = set()
            written: set[str] = set()
            block = self.blocks[label]
            for statement in block.statements:
                results, operands = split_statement(statement)
                used |= self._list_registers(operands) - written
                for name in results:
                    if name in self._kernel.register_types:
                        counts[name] = counts.get(name, 0) + 1
                        written.add(name)
            ends = [block.condition] if block.condition else []
            if block.jump_register is not None:
                ends.append(block.jump_register[0])
            used |= self._list_registers(ends) - written
            uses[label], writes[label] = used, written
        live: dict[str, set[str]] = {label: set(uses[label]) for label in self.order}
        waiting = list(self.order)
        while waiting:
            label = waiting.pop()
            for before in self.predecessors[label]:
                more = (live[label] - writes[before]) - live[before]
                if more:
                    live[before] |= more
                    waiting.append(before)
        several = {name for name, count in counts.items() if count > 1} | live[self.order[0]]
        return {label: sorted(live[label] & several) for label in self.order}

    def _list_registers(self, operands: list[str]) -> set[str]:
        known = self._kernel.register_types
        found = set()
        for operand in operands:
            if operand in known:
                found.add(operand)
            else:
                words = re.findall(r"[%$A-Za-z_][\w$%@]*", operand)
                found.update(word for word in words if word in known)
        return found
