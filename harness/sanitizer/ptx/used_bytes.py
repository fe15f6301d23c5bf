"""Which bytes of a load count as read: those of which something is made.

The compiler loads a struct as a whole, its padding with it: `ld.shared.v4.u16 {a, b, c, d}` of
which only `and.b16 e, a, 255` is used reads one byte. A load of which nothing is used reads all.
"""

from __future__ import annotations

from collections import defaultdict

from harness.sanitizer.ir.flow import map_control_flow_sources
from harness.sanitizer.ir.graph import IROperation, IRValue, KernelGraph
from harness.sanitizer.ptx.instructions import Instruction

ALL_BYTES = 0  # the mask of a read of which every byte counts, however long it is
NO_BYTES = 1 << 63  # of one of which none counts


class UsedBytes:
    """The bytes that are used of the values of a kernel, as masks of bits."""

    def __init__(self, graph: KernelGraph) -> None:
        self._uses: dict[IRValue, list[IROperation]] = defaultdict(list)
        self._constants: dict[IRValue, int] = {}
        for operation in graph.walk():
            if operation.name == "ptx.constant":
                self._constants[operation.result] = int(operation.attributes["value"])
            for operand in operation.operands:
                self._uses[operand].append(operation)
        sources = map_control_flow_sources(graph).values()
        self._passed_on = {value for values in sources for value in values}

    def find_mask(self, load: Instruction, size: int) -> int:
        """Return the used ones of a load's bytes; of a load of which nothing is used, all."""
        whole, mask = (1 << (size * len(load.results))) - 1, 0
        for place, result in enumerate(load.results):
            mask |= self._find_used(result, size) << (place * size)
        return mask or whole

    def _find_used(self, value: IRValue, size: int) -> int:
        whole = (1 << size) - 1
        if value in self._passed_on:
            return whole
        mask = 0
        for operation in self._uses[value]:
            mask |= self._find_used_by(Instruction(operation), value, whole)
        return mask & whole

    def _find_used_by(self, user: Instruction, value: IRValue, whole: int) -> int:
        if user.opcode == "and":
            masks = [
                self._constants[operand] for operand in user.operands if operand in self._constants
            ]
            if len(masks) == 1:
                size = whole.bit_length()
                return sum(1 << place for place in range(size) if masks[0] >> 8 * place & 255)
        if user.opcode == "cvt" and user.types[1:] in (["u8"], ["s8"]):
            return 1
        return whole
