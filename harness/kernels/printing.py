"""A graph as MLIR's generic form: what `parsing` reads, written again for Triton to read."""

from __future__ import annotations

from collections.abc import Iterable

from harness.kernels.graph import Block, Graph, Kind, Operation, Region, Source, Value


def printed(graph: Graph) -> str:
    """A module with this one kernel."""
    kinds = ", ".join(type_of(parameter.kind) for parameter in graph.parameters)
    attributes = {**graph.attributes, "function_type": f"({kinds}) -> ()"}
    kernel = Operation("tt.func", (), (), attributes, Source(), (graph.body,))
    module = Region((Block("bb0", (), (kernel,)),))
    return _operation(Operation("builtin.module", (), (), {}, Source(), (module,))) + "\n"


def type_of(kind: Kind) -> str:
    element = f"!tt.{kind.element}" if kind.is_pointer else kind.element
    if not kind.shape:
        return element
    return f"tensor<{'x'.join(map(str, kind.shape))}x{element}>"


def _operation(operation: Operation) -> str:
    made = _names(operation.results)
    text = (f"{made} = " if made else "") + f'"{operation.name}"({_names(operation.operands)})'
    if operation.successors:
        text += "[" + ", ".join(f"^{label}" for label in operation.successors) + "]"
    if operation.regions:
        text += " (" + ", ".join(map(_region, operation.regions)) + ")"
    if operation.attributes:
        text += f" {{{', '.join(_attribute(*one) for one in operation.attributes.items())}}}"
    given, results = _types(operation.operands), _types(operation.results)
    return f"{text} : ({given}) -> ({results}) loc({_location(operation.source)})"


def _attribute(name: str, value: str) -> str:
    return f'"{name}"' if value == "unit" else f'"{name}" = {value}'


def _region(region: Region) -> str:
    return "{\n" + "\n".join(map(_block, region.blocks)) + "\n}"


def _block(block: Block) -> str:
    given = ", ".join(f"%{value.number}: {type_of(value.kind)}" for value in block.arguments)
    head = f"^{block.label}" + (f"({given})" if given else "") + ":"
    return "\n".join([head, *map(_operation, block.operations)])


def _names(values: Iterable[Value]) -> str:
    return ", ".join(f"%{value.number}" for value in values)


def _types(values: Iterable[Value]) -> str:
    return ", ".join(type_of(value.kind) for value in values)


def _location(source: Source) -> str:
    here = f'"{source.file}":{source.line}:{source.column}' if source.line else "unknown"
    return here if source.caller is None else f"callsite({here} at {_location(source.caller)})"
