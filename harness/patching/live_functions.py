"""Finds the live function objects that a definition in a source file created."""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from harness.patching.instrumentation import FUNCTION_NODES

VARIADIC_FLAGS = 0x04 | 0x08  # inspect.CO_VARARGS and CO_VARKEYWORDS, without its import

# The path of a definition inside its module: names, each with its ordinal among equal names.
DefinitionPath = tuple[tuple[str, int], ...]
# Their frames never outlive the call that contains them.
COMPREHENSION_NAMES = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
WRAPPED_ATTRIBUTES = ("__func__", "__wrapped__", "fget", "fset", "fdel", "func", "fn", "_fn")


def iterate_definitions(
    tree: ast.AST, prefix: DefinitionPath = ()
) -> Iterator[tuple[DefinitionPath, ast.AST]]:
    """Yield every definition of a tree with its path, which is also the path of its code object."""
    counted: dict[str, int] = {}
    yield from _iterate_child_definitions(tree, prefix, counted)


def _iterate_child_definitions(
    node: ast.AST, prefix: DefinitionPath, name_counts: dict[str, int]
) -> Iterator[Any]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (*FUNCTION_NODES, ast.ClassDef)):
            number = name_counts[child.name] = name_counts.get(child.name, -1) + 1
            path = (*prefix, (child.name, number))
            yield path, child
            yield from iterate_definitions(child, path)
        elif isinstance(child, (ast.stmt, ast.ExceptHandler, getattr(ast, "match_case", ()))):
            yield from _iterate_child_definitions(child, prefix, name_counts)


def find_code(code: CodeType, path: DefinitionPath) -> CodeType:
    """Find the code object of a definition inside a compiled module."""
    for name, number in path:
        inner = [c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name]
        code = inner[number]
    return code


def get_first_line(definition: ast.AST) -> int:
    lines = [d.lineno for d in getattr(definition, "decorator_list", [])]
    return int(min([definition.lineno, *lines]))  # type: ignore[attr-defined]


def find_live_functions(
    module: ModuleType,
    path: DefinitionPath,
    line: int,
    filename: str,
    get_code: Callable[[FunctionType], CodeType],
) -> list[FunctionType]:
    """Find the functions created by the definition that begins on `line`: usually one.

    `get_code` returns a function's original code, also while a toggle has replaced it.
    """
    name = path[-1][0]

    def is_match(function: FunctionType) -> bool:
        code = get_code(function)
        return code.co_name == name and code.co_firstlineno == line and code.co_filename == filename

    start = find_bound_object(module, path)
    functions = [f for f in iterate_wrapped_functions(start) if is_match(f)]
    if functions:
        return list({id(f): f for f in functions}.values())
    # A decorator hides the function: search all functions of the process.
    with _include_frozen_objects():
        return [f for f in gc.get_objects() if type(f) is FunctionType and is_match(f)]


def find_bound_object(module: ModuleType, path: DefinitionPath) -> Any:
    """Find the object that a definition's name is bound to in its module or class, or None."""
    bound: Any = module
    for name, _ in path:
        bound = vars(bound).get(name) if hasattr(bound, "__dict__") else None
    return bound


def find_lru_caches(wrapped: Any) -> list[Any]:
    """Find the `lru_cache` wrappers around a function; their cached results depend on its code."""
    caches = []
    for _ in range(16):
        if isinstance(wrapped, functools._lru_cache_wrapper):
            caches.append(wrapped)
        wrapped = getattr(wrapped, "__func__", None) or getattr(wrapped, "__wrapped__", None)
        if wrapped is None:
            break
    return caches


def iterate_wrapped_functions(wrapped: Any, depth: int = 6) -> Iterator[FunctionType]:
    """Yield the plain functions inside descriptors, wrappers, partials and decorators' closures."""
    if wrapped is None or depth == 0:
        return
    if isinstance(wrapped, FunctionType):
        yield wrapped
        for cell in wrapped.__closure__ or ():
            try:
                inner = cell.cell_contents
            except ValueError:
                continue  # a cell without a value
            if callable(inner) or isinstance(inner, (property, functools.partial)):
                yield from iterate_wrapped_functions(inner, depth - 1)
    if isinstance(wrapped, type):
        return
    for name in WRAPPED_ATTRIBUTES:
        try:
            inner = object.__getattribute__(wrapped, name)
        except AttributeError:
            continue
        if inner is not wrapped:
            yield from iterate_wrapped_functions(inner, depth - 1)


@contextlib.contextmanager
def _include_frozen_objects() -> Iterator[None]:
    """Make `gc` list the objects that `gc.freeze` has moved out of its lists."""
    frozen = gc.get_freeze_count()
    if frozen:
        gc.unfreeze()
    try:
        yield
    finally:
        if frozen:
            gc.freeze()


def find_closures(code: CodeType) -> list[FunctionType]:
    """Find every live function that runs this code object."""
    with _include_frozen_objects():
        holders = gc.get_referrers(code)
    return [f for f in holders if type(f) is FunctionType and f.__code__ is code]


def iterate_changed_nested_code(
    before: CodeType, after: CodeType
) -> Iterator[tuple[CodeType, CodeType]]:
    """Yield the nested functions that differ between two versions, matched by name and order."""
    olds, news = _index_nested_code(before), _index_nested_code(after)
    for key in olds.keys() & news.keys():
        if key[0] not in COMPREHENSION_NAMES and make_behaviour_key(
            olds[key]
        ) != make_behaviour_key(news[key]):
            yield olds[key], news[key]
            yield from iterate_changed_nested_code(olds[key], news[key])


def list_changed_code(before: CodeType, after: CodeType) -> list[CodeType]:
    """List the code objects of a function and those inside it whose own instructions differ."""
    olds, news = _index_nested_code(before), _index_nested_code(after)
    is_same = olds.keys() == news.keys() and _make_own_key(before) == _make_own_key(after)
    changed = [] if is_same else [before]
    for key in olds.keys() & news.keys():
        changed += list_changed_code(olds[key], news[key])
    return changed


def _make_own_key(code: CodeType) -> tuple[Any, ...]:
    own = tuple(constant for constant in code.co_consts if not isinstance(constant, CodeType))
    return make_behaviour_key(code.replace(co_consts=own))


def _index_nested_code(code: CodeType) -> dict[tuple[str, int], CodeType]:
    counts: dict[str, int] = {}
    nested = {}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            number = counts[constant.co_name] = counts.get(constant.co_name, -1) + 1
            nested[(constant.co_name, number)] = constant
    return nested


def make_behaviour_key(code: CodeType) -> tuple[Any, ...]:
    """Make a key of what a code object does, without its file and line numbers."""
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount
    variadic = code.co_flags & VARIADIC_FLAGS
    names = code.co_names, code.co_varnames, code.co_freevars
    instructions = code.co_code, code.co_exceptiontable
    return (*counts, variadic, *names, *instructions, _make_constant_key(code.co_consts))


def _make_constant_key(constant: Any) -> Any:
    """Make a key that tells 1 from 1.0 and 0.0 from -0.0, also in a tuple."""
    if isinstance(constant, CodeType):
        return make_behaviour_key(constant)
    if isinstance(constant, tuple | frozenset):
        kind = type(constant)
        return kind, kind(_make_constant_key(part) for part in constant)
    return type(constant), repr(constant)
