"""Live changes of a class body: attributes and dataclass fields."""

from __future__ import annotations

import ast
import dataclasses
import sys
from abc import ABCMeta
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from harness.patching.instrumentation import FUNCTION_NODES, iterate_assigned_names
from harness.patching.live_patches import MISSING

DATACLASS_GENERATED = ("__init__", "__repr__", "__eq__", "__dataclass_fields__", "__match_args__")


def find_obstacle(cls: type, before: ast.ClassDef, after: ast.ClassDef, statement: ast.stmt) -> str:
    """Return why a live change cannot have the statement's effect; '' if it can."""
    if type(cls) not in (type, ABCMeta) or hasattr(cls, "_fields"):
        return f"the body of a class that {type(cls).__name__} or a base has read"
    if statement not in after.body or not isinstance(statement, (ast.Assign, ast.AnnAssign)):
        return "this part of a class body"
    names = set(iterate_assigned_names(statement))
    if any(name.startswith("__") for name in names):
        return "a private or special name of a class"
    readers = [
        node
        for other in after.body
        if other is not statement
        for node in _iterate_class_scope_nodes(other)
        if isinstance(node, ast.Name) and node.id in names
    ]
    if readers:
        return f"what line {readers[0].lineno} derives from {readers[0].id}"
    annotated = [
        ast.dump(other.annotation)
        for other in before.body
        if isinstance(other, ast.AnnAssign) and names & set(iterate_assigned_names(other))
    ]
    wanted = [ast.dump(statement.annotation)] if isinstance(statement, ast.AnnAssign) else []
    if annotated != wanted:
        return "an annotation"
    if "__dataclass_fields__" in vars(cls):
        if any("__dataclass_fields__" in vars(sub) for sub in _iterate_subclasses(cls)):
            return "a field that subclasses have copied"
        if any("__init_subclass__" in vars(base) for base in cls.__mro__[:-1]):
            return "a field of a class with __init_subclass__"
    return ""


def _iterate_class_scope_nodes(statement: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run when the class is created: function bodies do not."""
    if isinstance(statement, FUNCTION_NODES):
        parts = [*statement.decorator_list, *statement.args.defaults, *statement.args.kw_defaults]
        for part in parts:
            yield from ast.walk(part) if part is not None else ()
    else:
        yield from ast.walk(statement)


def _iterate_subclasses(cls: type) -> Iterator[type]:
    direct: list[type] = cls.__subclasses__()
    for sub in direct:
        yield sub
        yield from _iterate_subclasses(sub)


def compute_attributes(
    cls: type, changed_values: dict[str, Any], original_fields: dict[str, Any] | None
) -> dict[str, Any]:
    """Compute the class's attributes after the change, and the methods that `dataclass` generates.

    `original_fields` are the fields before any toggle; None for a class that is not a dataclass.
    """
    if original_fields is None:
        return changed_values
    annotations = dict(vars(cls).get("__annotations__", {}))
    body: dict[str, Any] = {"__annotations__": annotations, "__module__": cls.__module__}
    for name in annotations:
        if (
            name in original_fields
            and (
                value := _make_field_value(original_fields[name], changed_values.get(name, MISSING))
            )
            is not MISSING
        ):
            body[name] = value
    parameters: Any = vars(cls)["__dataclass_params__"]
    options = {n: getattr(parameters, n) for n in ("init", "repr", "eq", "order", "frozen")}
    # A second class, so that the class itself is unchanged until all attributes are known.
    twin: type = dataclasses.dataclass(**options)(type(cls)(cls.__name__, cls.__bases__, body))
    written = _find_handwritten_names(cls)
    fields = [] if "__slots__" in vars(cls) else list(changed_values)
    state: dict[str, Any] = {}
    for name in [n for n in DATACLASS_GENERATED if n not in written] + fields:
        value = vars(twin).get(name, MISSING)
        if isinstance(value, FunctionType):
            value.__qualname__ = f"{cls.__qualname__}.{name}"
        if value is not MISSING or name in vars(cls):
            state[name] = value
    return state


def _make_field_value(original_field: Any, changed_value: Any) -> Any:
    """Make the class-body value that defines a field, with its changed default."""
    if isinstance(changed_value, dataclasses.Field):
        return changed_value
    default = original_field.default if changed_value is MISSING else changed_value
    factory = original_field.default_factory if changed_value is MISSING else dataclasses.MISSING
    nothing = default is dataclasses.MISSING and factory is dataclasses.MISSING
    plain = (
        original_field.init
        and original_field.repr
        and original_field.compare
        and original_field.hash is None
        and not original_field.metadata
    )
    if nothing and plain and not original_field.kw_only:
        return MISSING
    defaults: dict[str, Any] = {"default": default, "default_factory": factory}
    field: Any = dataclasses.field(
        **defaults,
        init=original_field.init,
        repr=original_field.repr,
        hash=original_field.hash,
        compare=original_field.compare,
        metadata=original_field.metadata,
        kw_only=original_field.kw_only,
    )
    return field


def _find_handwritten_names(cls: type) -> set[str]:
    """Find the generated names that the class body defines: `dataclass` does not replace these."""
    file = getattr(sys.modules[cls.__module__], "__file__", "")
    return {
        name
        for name in DATACLASS_GENERATED
        if isinstance(vars(cls).get(name), FunctionType)
        and vars(cls)[name].__code__.co_filename == file
    }
