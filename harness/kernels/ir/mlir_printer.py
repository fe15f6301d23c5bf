"""A graph as MLIR's generic form: what `parsing` reads, written again for Triton to read."""

from __future__ import annotations

from collections.abc import Iterable

from harness.kernels.ir.graph import (
    IRBlock,
    IROperation,
    IRRegion,
    IRValue,
    KernelGraph,
    SourceLocation,
    ValueType,
)


def format_mlir(graph: KernelGraph) -> str:
    """A module with this one kernel."""
    kinds = ", ".join(format_type(parameter.type) for parameter in graph.parameters)
    attributes = {**graph.attributes, "function_type": f"({kinds}) -> ()"}
    kernel = IROperation("tt.func", (), (), attributes, SourceLocation(), (graph.body,))
    module = IRRegion((IRBlock("bb0", (), (kernel,)),))
    return (
        _format_operation(IROperation("builtin.module", (), (), {}, SourceLocation(), (module,)))
        + "\n"
    )


def format_type(value_type: ValueType) -> str:
    element = f"!tt.{value_type.element}" if value_type.is_pointer else value_type.element
    if not value_type.shape:
        return element
    return f"tensor<{'x'.join(map(str, value_type.shape))}x{element}>"


def _format_operation(operation: IROperation) -> str:
    made = _format_names(operation.results)
    text = (
        f"{made} = " if made else ""
    ) + f'"{operation.name}"({_format_names(operation.operands)})'
    if operation.successors:
        text += "[" + ", ".join(f"^{label}" for label in operation.successors) + "]"
    if operation.regions:
        text += " (" + ", ".join(map(_format_region, operation.regions)) + ")"
    if operation.attributes:
        text += f" {{{', '.join(_format_attribute(*one) for one in operation.attributes.items())}}}"
    given, results = _format_types(operation.operands), _format_types(operation.results)
    return f"{text} : ({given}) -> ({results}) loc({_format_location(operation.source)})"


def _format_attribute(name: str, value: str) -> str:
    return f'"{name}"' if value == "unit" else f'"{name}" = {value}'


def _format_region(region: IRRegion) -> str:
    return "{\n" + "\n".join(map(_format_block, region.blocks)) + "\n}"


def _format_block(block: IRBlock) -> str:
    given = ", ".join(f"%{value.number}: {format_type(value.type)}" for value in block.arguments)
    head = f"^{block.label}" + (f"({given})" if given else "") + ":"
    return "\n".join([head, *map(_format_operation, block.operations)])


def _format_names(values: Iterable[IRValue]) -> str:
    return ", ".join(f"%{value.number}" for value in values)


def _format_types(values: Iterable[IRValue]) -> str:
    return ", ".join(format_type(value.type) for value in values)


def _format_location(source: SourceLocation) -> str:
    here = f'"{source.file}":{source.line}:{source.column}' if source.line else "unknown"
    return (
        here if source.caller is None else f"callsite({here} at {_format_location(source.caller)})"
    )
