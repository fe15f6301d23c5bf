"""Which 32-bit integers become part of a global address, and how their uses read their sign.

PTX's `add.s32` is the same for signed and unsigned integers; the use that widens a sum decides. An
integer that is widened both ways is not followed. Example: `mad.lo.s32 %r4, …; cvt.u64.u32 %rd1,
%r4;` makes `%r4` unsigned, and `add.s64 %rd7, %rd5, %rd6` is where it enters an address.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from harness.sanitizer.ir.flow import map_control_flow_sources, map_defining_operations
from harness.sanitizer.ir.graph import IROperation, IRValue, KernelGraph
from harness.sanitizer.ptx.flow import is_vector_move, list_addresses
from harness.sanitizer.ptx.instructions import Instruction, space_of
from harness.sanitizer.ptx.integer_bounds import IntegerBounds
from harness.sanitizer.ptx.operations import find_operation
from harness.sanitizer.ptx.parser import PtxName


@dataclass(frozen=True, slots=True)
class OverflowFlow:
    """The integers to follow: `signs` says of each whether its uses read it as signed."""

    signs: dict[IRValue, bool]
    may_wrap: frozenset[IRValue]  # of those, the ones whose true value may differ
    wide: frozenset[IRValue]  # values of 64 bits that depend on one
    low_halves: dict[IRValue, IRValue]  # results that are the low half of a value
    bit_complements: frozenset[IRValue]  # results of `not` whose true value is their 32 bits
    differences: frozenset[IRValue]  # results of `or` that are x - 2**n


def value_operands(instruction: Instruction) -> tuple[IRValue, ...]:
    """Return the operands that are part of the result: not a predicate, not a shift's amount."""
    return instruction.operands[: find_operation(instruction.opcode).values]


def has_true_value(instruction: PtxName) -> bool:
    """Return whether the true result follows from the true values of the operands."""
    is_exact = find_operation(instruction.opcode).exact
    return is_exact and not instruction.has("hi", "wide", "sat", "cc")


def is_widening(instruction: PtxName) -> bool:
    """Return whether an instruction makes 64 bits of 32."""
    if find_operation(instruction.opcode).is_product:
        return instruction.has("wide") and instruction.modifiers[-1] in ("s32", "u32")
    return _is_conversion(instruction, "64", "32")


def is_narrowing(instruction: PtxName) -> bool:
    return _is_conversion(instruction, "32", "64")


def _is_conversion(instruction: PtxName, target: str, source: str) -> bool:
    """Return whether a `cvt` makes an integer of one width of an integer of another."""
    kinds = [(kind[0] in "us", kind[1:]) for kind in instruction.types]
    return instruction.opcode == "cvt" and kinds == [(True, target), (True, source)]


def find_extended_low_half(
    operation: IROperation, definitions: dict[IRValue, IROperation]
) -> IRValue | None:
    """Return x for `((x << 32) >> n)` with n up to 32: its low half, sign-extended and shifted.

    That is what the compiler makes of `p[(int)x]` with x of 64 bits.
    """
    if operation.name != "ptx.shr" or operation.attributes.get("modifiers") != "s64":
        return None
    inner = definitions.get(operation.operands[0])
    if inner is None or inner.name != "ptx.shl":
        return None
    amounts = [
        definitions[shift.operands[1]].attributes.get("value") for shift in (operation, inner)
    ]
    if amounts[1] != "32" or amounts[0] is None or not 0 < int(amounts[0]) <= 32:
        return None
    return inner.operands[0]


def find_word_pairs(graph: KernelGraph, definitions: dict[IRValue, IROperation]) -> set[IRValue]:
    """Find words of 64 bits in memory that hold two of 32: a kernel reads the upper one alone.

    Of such a pair the lower word is no narrowed index. Example: an epoch beside an index, of which
    `entry >> 32` is compared and `(int)entry` is used.
    """
    return {
        operation.operands[0]
        for operation in graph.walk()
        if operation.name == "ptx.shr"
        and operation.attributes.get("modifiers") in ("u64", "s64", "b64")
        and (amount := definitions.get(operation.operands[1])) is not None
        and amount.attributes.get("value") == "32"
        and (source := definitions.get(operation.operands[0])) is not None
        and find_operation(source.name).from_memory
    }


def reads_signed(instruction: PtxName) -> bool:
    return instruction.modifiers[-1].startswith("s")


_Step = tuple[IRValue, bool | None, bool]  # a value, the sign of its use, whether it is in a sum


class _Walk:
    """The walk from the addresses of a kernel back to the integers that they are computed from."""

    def __init__(self, graph: KernelGraph) -> None:
        self.sources = map_control_flow_sources(graph)
        self.definitions = map_defining_operations(graph)
        self._bounds = IntegerBounds(graph, self.definitions)
        self.pairs = find_word_pairs(graph, self.definitions)
        self.signs: dict[IRValue, set[bool]] = defaultdict(set)
        self.wide: set[IRValue] = set()
        self.bit_complements: set[IRValue] = set()
        self.differences: set[IRValue] = set()
        seen: set[_Step] = set()
        waiting: list[_Step] = [
            (value, None, False)
            for operation in graph.walk()
            for value in list_addresses(operation)
            if space_of(Instruction(operation)) in ("global", "generic")
        ]
        while waiting:
            value, sign, in_sum = step = waiting.pop()
            if value.type.bits == 64:
                if value in self.wide:
                    continue
                self.wide.add(value)
            elif value.type.bits == 32 and sign is not None:
                if step in seen:
                    continue
                seen.add(step)
                self.signs[value].add(sign)
            else:
                continue
            waiting += [(source, sign, in_sum) for source in self.sources.get(value, ())]
            operation = self.definitions.get(value)
            if operation is not None:
                waiting += self._list_steps(operation, value, sign, in_sum)

    def _list_steps(
        self, operation: IROperation, value: IRValue, sign: bool | None, in_sum: bool
    ) -> list[_Step]:
        """List the operands that a value is computed from, each as the operation uses it."""
        instruction, row = Instruction(operation), find_operation(operation.name)
        if instruction.opcode == "mov" and is_vector_move(operation):
            return []
        if value.type.bits == 64:
            if self.find_low_half(operation) is not None:
                return []
            if not row.wide:
                return []
            if is_widening(instruction):
                signed = reads_signed(instruction)
                return [
                    (operand, signed if place < 2 else None, False)
                    for place, operand in enumerate(value_operands(instruction))
                ]
            return [(operand, None, False) for operand in value_operands(instruction)]
        if is_narrowing(instruction):
            [whole] = instruction.operands
            return [] if whole in self.pairs else [(whole, None, False)]
        if in_sum and self._is_difference(instruction):
            self.differences.add(value)
            return []
        if not has_true_value(instruction):
            return []
        if instruction.opcode == "not" and not sign and not in_sum:
            self.bit_complements.add(value)
            return []
        if row.reads_sign:
            sign, in_sum = reads_signed(instruction), False
        in_sum = in_sum or row.is_sum
        return [(operand, sign, in_sum) for operand in value_operands(instruction)]

    def find_low_half(self, operation: IROperation) -> IRValue | None:
        """Return what an operation extends the low half of, unless that is a word of a pair."""
        half = find_extended_low_half(operation, self.definitions)
        return None if half in self.pairs else half

    def _is_difference(self, instruction: Instruction) -> bool:
        """Return whether it is `x | -2**n` with x below 2**n: the compiler's x - 2**n in a sum.

        Of an x that may reach 2**n, `or` is an operation on bits, whose result is its 32 bits.
        """
        if instruction.opcode != "or":
            return False
        largest = [self._bounds.find_largest(operand) for operand in instruction.operands]
        sizes = [
            -int(operation.attributes["value"]) & 0xFFFFFFFF
            if (operation := self.definitions.get(operand)) and operation.name == "ptx.constant"
            else 0
            for operand in instruction.operands
        ]
        return any(
            0 < size < 1 << 31 and size & (size - 1) == 0 and other < size
            for size, other in zip(sizes, reversed(largest), strict=True)
        )


def analyze_overflow(graph: KernelGraph) -> OverflowFlow:
    walk = _Walk(graph)
    signs = {value: signs.copy().pop() for value, signs in walk.signs.items() if len(signs) == 1}
    may_wrap: set[IRValue] = set()
    wide: set[IRValue] = set()
    changed = True
    while changed:
        changed = False
        for value in signs:
            if value not in may_wrap and _may_wrap(walk, value, may_wrap):
                may_wrap.add(value)
                changed = True
        for value in walk.wide:
            if value in wide:
                continue
            operation = walk.definitions.get(value)
            inputs = list(walk.sources.get(value, ()))
            if operation is not None and find_operation(operation.name).wide:
                inputs += operation.operands
            extends = operation is not None and walk.find_low_half(operation) is not None
            if extends or any(source in wide or source in may_wrap for source in inputs):
                wide.add(value)
                changed = True
    halves = {
        value: half
        for value in wide
        if (operation := walk.definitions.get(value)) is not None
        and (half := walk.find_low_half(operation)) is not None
    }
    complements, differences = frozenset(walk.bit_complements), frozenset(walk.differences)
    return OverflowFlow(
        signs, frozenset(may_wrap), frozenset(wide), halves, complements, differences
    )


def _may_wrap(walk: _Walk, value: IRValue, may_wrap: set[IRValue]) -> bool:
    if value in walk.differences or any(
        source in may_wrap for source in walk.sources.get(value, ())
    ):
        return True
    operation = walk.definitions.get(value)
    if operation is None or operation.name == "ptx.constant" or value in walk.bit_complements:
        return False
    instruction = Instruction(operation)
    if instruction.opcode == "mov" and is_vector_move(operation):
        return False
    if is_narrowing(instruction):
        return instruction.operands[0] not in walk.pairs
    if not has_true_value(instruction):
        return False
    if find_operation(instruction.opcode).wraps:
        return True
    return any(operand in may_wrap for operand in value_operands(instruction))
