"""`tl.map_elementwise`: a function with branches of its own, called on each group of lanes."""

from __future__ import annotations

from harness.sanitizer.cpu.control_flow import ControlFlowLowering
from harness.sanitizer.ir.graph import IROperation


def lower_map(emitter: ControlFlowLowering, operation: IROperation) -> None:
    """Call the function on `pack` lanes of each operand; it returns as many of each result."""
    code, pack = emitter.code, operation.get_int("pack", 1)
    [region] = operation.regions
    emitter.materialize_pending()
    emitter.materialize(*operation.operands)
    buffers = [emitter.allocate_for_type(result.type) for result in operation.results]
    bases = [emitter.emit_buffer_address(buffer) for buffer in buffers]
    with code.loop(operation.results[0].type.lanes // pack) as group:
        start = code.let(f"mul i64 {group}, {pack}")
        indices = [code.let(f"add i64 {start}, {place}") for place in range(pack)]
        arguments = iter(region.blocks[0].arguments)
        for operand in operation.operands:
            for index in indices:
                argument = next(arguments)
                emitter.scalars[argument], state = emitter.emit_lane(operand, index, {})
                if state is not None:
                    emitter.overflows.scalars[argument] = state

        def store_results(end: IROperation) -> None:
            values = iter(end.operands)
            for result, base in zip(operation.results, bases, strict=True):
                for index in indices:
                    lane, _ = emitter.emit_lane(next(values), "0", {})
                    emitter.emit_lane_store(lane, base, result.type.element, index)

        emitter.lower_blocks(region, store_results)
    for result, buffer in zip(operation.results, buffers, strict=True):
        emitter.set_result_buffer(result, buffer)
