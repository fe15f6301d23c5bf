"""Data flow in a PTX kernel: which values form addresses, which values live at each instruction."""

from __future__ import annotations

from collections import defaultdict

from harness.kernels.ir.flow import list_branch_targets, map_control_flow_sources
from harness.kernels.ir.graph import IRBlock, IROperation, IRValue, KernelGraph
from harness.kernels.ptx.instructions import Instruction, space_of

# The result points into the memory that one of these operands points into.
POINTER_OPERANDS = {
    "ptx.mov": (0,),
    "ptx.cvta": (0,),
    "ptx.add": (0, 1),
    "ptx.sub": (0,),
    "ptx.and": (0, 1),
    "ptx.or": (0, 1),
    "ptx.min": (0, 1),
    "ptx.max": (0, 1),
    "ptx.selp": (0, 1),
    "ptx.mad": (2,),
    "ptx.cvt": (0,),
    "ptx.mapa": (0,),
}
# Instructions whose operand is an address, and which operands are.
ADDRESS_OPERANDS = {
    "ptx.ld": (0,),
    "ptx.ldu": (0,),
    "ptx.st": (0,),
    "ptx.atom": (0,),
    "ptx.red": (0,),
    "ptx.cp": (0, 1, 3),
    "ptx.ldmatrix": (0,),
    "ptx.stmatrix": (0,),
    "ptx.mbarrier": (0,),
}


def is_vector_move(operation: IROperation) -> bool:
    return len(operation.operands) != 1 or len(operation.results) != 1


def find_pointers(graph: KernelGraph) -> set[IRValue]:
    """Find the values that an address may be computed from, without what is added to it."""
    definitions = {result: operation for operation in graph.walk() for result in operation.results}
    sources = map_control_flow_sources(graph)
    waiting = [
        operation.operands[place]
        for operation in graph.walk()
        for place in ADDRESS_OPERANDS.get(operation.name, ())
        if place < len(operation.operands)
    ]
    found: set[IRValue] = set()
    while waiting:
        value = waiting.pop()
        if value in found or value.type.bits < 32:
            continue
        found.add(value)
        waiting += sources.get(value, ())
        definition = definitions.get(value)
        if definition is None or definition.name not in POINTER_OPERANDS:
            continue
        if definition.name == "ptx.mov" and is_vector_move(definition):
            continue
        waiting += [
            definition.operands[place]
            for place in POINTER_OPERANDS[definition.name]
            if place < len(definition.operands)
        ]
    return found


def find_live_out(graph: KernelGraph) -> dict[str, set[IRValue]]:
    """Find the values that each block's successors read."""
    blocks = {block.label: block for block in graph.body.blocks}
    live_in: dict[str, set[IRValue]] = {label: set() for label in blocks}
    live_out: dict[str, set[IRValue]] = {label: set() for label in blocks}
    predecessors: dict[str, set[str]] = defaultdict(set)
    for label, block in blocks.items():
        for target, _ in list_branch_targets(block.operations[-1]):
            predecessors[target].add(label)
    waiting = list(blocks)
    while waiting:
        label = waiting.pop()
        block = blocks[label]
        out: set[IRValue] = set()
        for target, _ in list_branch_targets(block.operations[-1]):
            out |= live_in[target] - set(blocks[target].arguments)
        live_out[label] = out
        inside = _read_backwards(block, out)
        if inside != live_in[label]:
            live_in[label] = inside
            waiting += predecessors[label]
    return live_out


def _read_backwards(block: IRBlock, out: set[IRValue]) -> set[IRValue]:
    living = set(out)
    for operation in reversed(block.operations):
        living -= set(operation.results)
        living |= set(operation.operands)
    return living


def find_live_after(block: IRBlock, out: set[IRValue]) -> dict[IROperation, set[IRValue]]:
    """Find the values that are read after each operation of a block."""
    after: dict[IROperation, set[IRValue]] = {}
    living = set(out)
    for operation in reversed(block.operations):
        after[operation] = set(living)
        living -= set(operation.results)
        living |= set(operation.operands)
    return after


def find_loop_blocks(graph: KernelGraph) -> set[str]:
    """Find the blocks that can be reached from themselves."""
    targets = {
        block.label: [label for label, _ in list_branch_targets(block.operations[-1])]
        for block in graph.body.blocks
    }
    found = set()
    for label in targets:
        seen: set[str] = set()
        waiting = list(targets[label])
        while waiting:
            other = waiting.pop()
            if other not in seen:
                seen.add(other)
                waiting += targets[other]
        if label in seen:
            found.add(label)
    return found


def synchronizes_blocks(graph: KernelGraph) -> bool:
    """Return whether blocks may wait for each other, so that their accesses may have an order.

    They may if one uses the result of an atomic update of global memory or rereads it.
    """
    used = {value for operation in graph.walk() for value in operation.operands}
    for operation in graph.walk():
        if operation.name not in ("ptx.atom", "ptx.ld"):
            continue
        instruction = Instruction(operation)
        if space_of(instruction) not in ("global", "generic"):
            continue
        if operation.name == "ptx.atom" and not used.isdisjoint(operation.results):
            return True
        if operation.name == "ptx.ld" and may_spin(instruction):
            return True
    return False


def may_spin(instruction: Instruction) -> bool:
    """Return whether a loop over an instruction may wait for another thread."""
    if instruction.opcode == "ld":
        return instruction.has("volatile", "relaxed", "acquire")
    return instruction.opcode == "atom"
