"""The values outside of a kernel that its front end reads: they are part of what it compiles to.

Triton's own key of a kernel contains the sources of the kernel and of its helpers, and no values
that they read as `module.CONST`, `Class.CONST` or `module.TABLE["key"]`. Example: with `SIZE = 20`
in `settings.py`, a kernel that reads `settings.SIZE` has 20 in its IR; edited to 30, the kernel has
the same source and needs another IR. So the keys of all compiled forms contain these values.
"""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import triton.language as tl
from triton.runtime.jit import JITCallable

from harness.sanitizer.triton import adapter

_Path = tuple[str, ...]  # ("settings", "SIZE")
_MISSING = object()
_PLAIN_TYPES = (bool, int, float, complex, str, bytes, type(None), tl.dtype)
_paths_by_function: WeakKeyDictionary[FunctionType, frozenset[_Path]] = WeakKeyDictionary()


def describe_constants(kernel: Any) -> str:
    """Describe all plain values that a kernel and its helpers can read outside of themselves."""
    texts: list[str] = []
    waiting, visited = [kernel], {id(kernel)}
    while waiting:
        function = waiting.pop()
        for path in sorted(_find_paths(function)):
            value = _resolve_path(function.fn, path)
            if text := _describe_value(value):
                texts.append(f"{'.'.join(path)}={text}")
            for helper in _iterate_helpers(value):
                if id(helper) not in visited:
                    visited.add(id(helper))
                    waiting.append(helper)
                    texts.append(helper.cache_key)
    return ";".join(texts)


def _iterate_helpers(value: Any, depth: int = 3) -> Iterator[JITCallable]:
    """Yield the functions of Triton that a value is or contains; Triton follows no containers."""
    if isinstance(value, JITCallable):
        yield value
    elif depth and isinstance(value, (tuple, list, set, frozenset, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _iterate_helpers(item, depth - 1)


def _find_paths(function: Any) -> frozenset[_Path]:
    """Find the names of other scopes that the code of a function reads, with their attributes."""
    found = _paths_by_function.get(function.fn)
    if found is None:
        tree = adapter.get_syntax_tree(function)
        code = function.fn.__code__
        outer = {*function.fn.__globals__, *code.co_freevars} - {*code.co_varnames}
        paths = (_read_path(node) for node in ast.walk(tree))
        found = frozenset(path for path in paths if path and path[0] in outer)
        _paths_by_function[function.fn] = found
    return found


def _read_path(node: ast.AST) -> _Path:
    """Return a name or a chain of attributes as a path; empty for any other node."""
    match node:
        case ast.Name(id=name):
            return (name,)
        case ast.Attribute(value=owner, attr=name):
            path = _read_path(owner)
            return (*path, name) if path else ()
        case ast.Call(func=ast.Name(id="getattr"), args=[owner, ast.Constant(value=str(name)), *_]):
            path = _read_path(owner)
            return (*path, name) if path else ()
    return ()


def _resolve_path(function: FunctionType, path: _Path) -> Any:
    free = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    try:
        cell = free.get(path[0])
        value = function.__globals__[path[0]] if cell is None else cell.cell_contents
        for name in path[1:]:
            value = getattr(value, name)
    except (KeyError, AttributeError, ValueError):  # the kernel that reads it fails by itself
        return _MISSING
    return value


def _describe_value(value: Any, depth: int = 3) -> str:
    """Describe a plain value, a container of such, or the plain attributes of an object."""
    if isinstance(value, tl.constexpr):
        value = value.value
    if isinstance(value, enum.Enum):
        return f"{value.name}:{_describe_value(value.value)}"
    if isinstance(value, _PLAIN_TYPES):
        return f"{type(value).__name__} {value!r}"
    if depth == 0 or isinstance(value, (JITCallable, ModuleType, FunctionType)) or _is_known(value):
        return ""
    if isinstance(value, dict):
        return f"{{{','.join(sorted(_iterate_items(value.items(), depth)))}}}"
    if isinstance(value, (tuple, list, set, frozenset)):
        texts = [_describe_value(item, depth - 1) for item in value]
        return f"[{','.join(sorted(texts) if isinstance(value, (set, frozenset)) else texts)}]"
    attributes = getattr(value, "__dict__", {})
    plain = {name: item for name, item in attributes.items() if not name.startswith("__")}
    return ",".join(sorted(_iterate_items(plain.items(), depth)))


def _is_known(value: Any) -> bool:
    """Return whether a value belongs to Triton or torch, whose versions are part of each key."""
    module = getattr(value if isinstance(value, type) else type(value), "__module__", None) or ""
    return module.partition(".")[0] in ("triton", "torch")


def _iterate_items(items: Any, depth: int) -> Iterator[str]:
    for name, value in items:
        if text := _describe_value(value, depth - 1):
            yield f"{name!r}:{text}"
