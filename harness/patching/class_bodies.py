"""Live changes of what stands in a class's own body: attributes, and dataclass fields."""

from __future__ import annotations

import ast
import dataclasses
import sys
from abc import ABCMeta
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from harness.patching.instrument import FUNCTIONS, assigned
from harness.patching.units import MISSING

GENERATED = ("__init__", "__repr__", "__eq__", "__dataclass_fields__", "__match_args__")


def obstacle(cls: type, before: ast.ClassDef, after: ast.ClassDef, statement: ast.stmt) -> str:
    """Why the statement's effect cannot be had without importing again; '' if it can."""
    if type(cls) not in (type, ABCMeta) or hasattr(cls, "_fields"):
        return f"the body of a class that {type(cls).__name__} or a base has read"
    if statement not in after.body or not isinstance(statement, (ast.Assign, ast.AnnAssign)):
        return "this part of a class body"
    names = set(assigned(statement))
    if any(name.startswith("__") for name in names):
        return "a private or special name of a class"
    readers = [
        node
        for other in after.body
        if other is not statement
        for node in _own_nodes(other)
        if isinstance(node, ast.Name) and node.id in names
    ]
    if readers:
        return f"what line {readers[0].lineno} derives from {readers[0].id}"
    annotated = [
        ast.dump(other.annotation)
        for other in before.body
        if isinstance(other, ast.AnnAssign) and names & set(assigned(other))
    ]
    wanted = [ast.dump(statement.annotation)] if isinstance(statement, ast.AnnAssign) else []
    if annotated != wanted:
        return "an annotation"
    if "__dataclass_fields__" in vars(cls):
        if any("__dataclass_fields__" in vars(sub) for sub in _subclasses(cls)):
            return "a field that subclasses have copied"
        if any("__init_subclass__" in vars(base) for base in cls.__mro__[:-1]):
            return "a field of a class whose making is watched"
    return ""


def _own_nodes(statement: ast.AST) -> Iterator[ast.AST]:
    """What of a class body's statement runs with the class: not the bodies of its functions."""
    if isinstance(statement, FUNCTIONS):
        parts = [*statement.decorator_list, *statement.args.defaults, *statement.args.kw_defaults]
        for part in parts:
            yield from ast.walk(part) if part is not None else ()
    else:
        yield from ast.walk(statement)


def _subclasses(cls: type) -> Iterator[type]:
    direct: list[type] = cls.__subclasses__()
    for sub in direct:
        yield sub
        yield from _subclasses(sub)


def attributes(cls: type, changed: dict[str, Any], own: dict[str, Any] | None) -> dict[str, Any]:
    """The class's attributes after the change, with what `dataclass` makes of changed fields.

    `own` are its fields as they were before any toggle; None if it is no dataclass.
    """
    if own is None:
        return changed
    annotations = dict(vars(cls).get("__annotations__", {}))
    body: dict[str, Any] = {"__annotations__": annotations, "__module__": cls.__module__}
    for name in annotations:
        if name in own and (value := _field(own[name], changed.get(name, MISSING))) is not MISSING:
            body[name] = value
    parameters: Any = vars(cls)["__dataclass_params__"]
    options = {n: getattr(parameters, n) for n in ("init", "repr", "eq", "order", "frozen")}
    # A twin, so that nothing of the class itself is touched before all of it is known.
    twin: type = dataclasses.dataclass(**options)(type(cls)(cls.__name__, cls.__bases__, body))
    written = _written_by_hand(cls)
    fields = [] if "__slots__" in vars(cls) else list(changed)
    state: dict[str, Any] = {}
    for name in [n for n in GENERATED if n not in written] + fields:
        value = vars(twin).get(name, MISSING)
        if isinstance(value, FunctionType):
            value.__qualname__ = f"{cls.__qualname__}.{name}"
        if value is not MISSING or name in vars(cls):
            state[name] = value
    return state


def _field(old: Any, changed: Any) -> Any:
    """The class-body value that a field came from, with its default changed if it is."""
    if isinstance(changed, dataclasses.Field):
        return changed
    default = old.default if changed is MISSING else changed
    factory = old.default_factory if changed is MISSING else dataclasses.MISSING
    nothing = default is dataclasses.MISSING and factory is dataclasses.MISSING
    plain = old.init and old.repr and old.compare and old.hash is None and not old.metadata
    if nothing and plain and not old.kw_only:
        return MISSING
    kept: dict[str, Any] = {"default": default, "default_factory": factory}
    made: Any = dataclasses.field(
        **kept,
        init=old.init,
        repr=old.repr,
        hash=old.hash,
        compare=old.compare,
        metadata=old.metadata,
        kw_only=old.kw_only,
    )
    return made


def _written_by_hand(cls: type) -> set[str]:
    """Those of the generated names that the class's author wrote: `dataclass` leaves them alone."""
    file = getattr(sys.modules[cls.__module__], "__file__", "")
    return {
        name
        for name in GENERATED
        if isinstance(vars(cls).get(name), FunctionType)
        and vars(cls)[name].__code__.co_filename == file
    }
