"""A graph in MLIR's generic form, for Triton to read: the inverse of `triton/mlir_parser`."""

from __future__ import annotations

from collections.abc import Iterable

from harness.sanitizer.ir.graph import (
    IRBlock,
    IROperation,
    IRRegion,
    IRValue,
    KernelGraph,
    SourceLocation,
    ValueType,
)


def format_mlir(graph: KernelGraph) -> str:
    """Return a module with this one kernel."""
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
    names = _format_names(operation.results)
    text = (f"{names} = " if names else "") + f'"{operation.name}"'
    text += f"({_format_names(operation.operands)})"
    if operation.successors:
        text += "[" + ", ".join(f"^{label}" for label in operation.successors) + "]"
    if operation.regions:
        text += " (" + ", ".join(map(_format_region, operation.regions)) + ")"
    if operation.attributes:
        attributes = (_format_attribute(*item) for item in operation.attributes.items())
        text += f" {{{', '.join(attributes)}}}"
    operands, results = _format_types(operation.operands), _format_types(operation.results)
    return f"{text} : ({operands}) -> ({results}) loc({_format_location(operation.source)})"


def _format_attribute(name: str, value: str) -> str:
    return f'"{name}"' if value == "unit" else f'"{name}" = {value}'


def _format_region(region: IRRegion) -> str:
    return "{\n" + "\n".join(map(_format_block, region.blocks)) + "\n}"


def _format_block(block: IRBlock) -> str:
    arguments = ", ".join(
        f"%{value.number}: {format_type(value.type)}" for value in block.arguments
    )
    head = f"^{block.label}" + (f"({arguments})" if arguments else "") + ":"
    return "\n".join([head, *map(_format_operation, block.operations)])


def _format_names(values: Iterable[IRValue]) -> str:
    return ", ".join(f"%{value.number}" for value in values)


def _format_types(values: Iterable[IRValue]) -> str:
    return ", ".join(format_type(value.type) for value in values)


def _format_location(source: SourceLocation) -> str:
    position = f'"{source.file}":{source.line}:{source.column}' if source.line else "unknown"
    return (
        position
        if source.caller is None
        else f"callsite({position} at {_format_location(source.caller)})"
    )
