"""Data flow in a PTX kernel: which values form addresses, which values live at each instruction."""

from __future__ import annotations

from collections import defaultdict

from harness.sanitizer.ir.flow import (
    list_branch_targets,
    map_control_flow_sources,
    map_defining_operations,
)
from harness.sanitizer.ir.graph import IRBlock, IROperation, IRValue, KernelGraph
from harness.sanitizer.ptx.instructions import Instruction, space_of
from harness.sanitizer.ptx.operations import find_operation


def is_vector_move(operation: IROperation) -> bool:
    return len(operation.operands) != 1 or len(operation.results) != 1


def list_addresses(operation: IROperation) -> list[IRValue]:
    places = find_operation(operation.name).addresses
    return [operation.operands[place] for place in places if place < len(operation.operands)]


def find_pointers(graph: KernelGraph) -> set[IRValue]:
    """Find the values that an address may be computed from, without what is added to it."""
    definitions = map_defining_operations(graph)
    sources = map_control_flow_sources(graph)
    waiting = [value for operation in graph.walk() for value in list_addresses(operation)]
    found: set[IRValue] = set()
    while waiting:
        value = waiting.pop()
        if value not in found and value.type.bits >= 32:
            found.add(value)
            waiting += sources.get(value, ())
            if value in definitions:
                waiting += list_pointer_operands(definitions[value])
    return found


def list_pointer_operands(operation: IROperation) -> list[IRValue]:
    """List the operands into whose memory the result of an operation may point."""
    if operation.name == "ptx.mov" and is_vector_move(operation):
        return []
    places = find_operation(operation.name).pointers
    return [operation.operands[place] for place in places if place < len(operation.operands)]


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
        inside = _find_live_in(block, out)
        if inside != live_in[label]:
            live_in[label] = inside
            waiting += predecessors[label]
    return live_out


def _find_live_in(block: IRBlock, out: set[IRValue]) -> set[IRValue]:
    first = block.operations[0]
    after = find_live_after(block, out)[first]
    return after - set(first.results) | set(first.operands)


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
        instruction = Instruction(operation)
        if not may_spin(instruction) or space_of(instruction) not in ("global", "generic"):
            continue
        if operation.name == "ptx.ld" or not used.isdisjoint(operation.results):
            return True
    return False


def may_spin(instruction: Instruction) -> bool:
    """Return whether a loop over an instruction may wait for another thread."""
    if instruction.opcode == "ld":
        return instruction.has("volatile", "relaxed", "acquire")
    return instruction.opcode == "atom"
