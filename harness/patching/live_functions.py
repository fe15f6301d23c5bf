"""Finding the live function objects that a definition in a source file became."""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from harness.patching.instrumentation import FUNCTION_NODES

# A definition's way down through a module: names, each with which one of that name it is.
DefinitionPath = tuple[tuple[str, int], ...]
# Their frames live no longer than the call that holds them.
COMPREHENSION_NAMES = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
WRAPPED_ATTRIBUTES = ("__func__", "__wrapped__", "fget", "fset", "fdel", "func", "fn", "_fn")


def iterate_definitions(
    tree: ast.AST, prefix: DefinitionPath = ()
) -> Iterator[tuple[DefinitionPath, ast.AST]]:
    """Every definition of a tree by its path, as the compiler nests code objects."""
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
    """The code object of a definition inside a compiled module."""
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
    """The functions made by the definition that begins on `line`: usually one.

    `code_of` tells a function's own code, also while a toggle has given it another.
    """
    name = path[-1][0]

    def is_it(function: FunctionType) -> bool:
        code = get_code(function)
        return code.co_name == name and code.co_firstlineno == line and code.co_filename == filename

    start = find_bound_object(module, path)
    found = [f for f in iterate_wrapped_functions(start) if is_it(f)]
    if found:
        return list({id(f): f for f in found}.values())
    # Hidden by a decorator that keeps it out of sight: every function of the process is asked.
    with _include_frozen_objects():
        return [f for f in gc.get_objects() if type(f) is FunctionType and is_it(f)]


def find_bound_object(module: ModuleType, path: DefinitionPath) -> Any:
    """What a definition's name is bound to, as it lies in its module or class; None if nothing."""
    found: Any = module
    for name, _ in path:
        found = vars(found).get(name) if hasattr(found, "__dict__") else None
    return found


def find_lru_caches(wrapped: Any) -> list[Any]:
    """The `lru_cache` wrappers around a function, whose kept answers another code would change."""
    caches = []
    for _ in range(16):
        if isinstance(wrapped, functools._lru_cache_wrapper):
            caches.append(wrapped)
        wrapped = getattr(wrapped, "__func__", None) or getattr(wrapped, "__wrapped__", None)
        if wrapped is None:
            break
    return caches


def iterate_wrapped_functions(wrapped: Any, depth: int = 6) -> Iterator[FunctionType]:
    """The plain functions inside descriptors, wrappers, partials and decorators' closures."""
    if wrapped is None or depth == 0:
        return
    if isinstance(wrapped, FunctionType):
        yield wrapped
        for cell in wrapped.__closure__ or ():
            try:
                inner = cell.cell_contents
            except ValueError:
                continue  # a cell that nothing has filled yet
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
    """Let the collector's lists hold what `gc.freeze` had taken out of them."""
    frozen = gc.get_freeze_count()
    if frozen:
        gc.unfreeze()
    try:
        yield
    finally:
        if frozen:
            gc.freeze()


def find_closures(code: CodeType) -> list[FunctionType]:
    """Every living function that runs this code object."""
    with _include_frozen_objects():
        holders = gc.get_referrers(code)
    return [f for f in holders if type(f) is FunctionType and f.__code__ is code]


def iterate_changed_nested_code(
    before: CodeType, after: CodeType
) -> Iterator[tuple[CodeType, CodeType]]:
    """The functions inside two versions of one function that differ, matched by name and order."""
    olds, news = _index_nested_code(before), _index_nested_code(after)
    for key in olds.keys() & news.keys():
        if key[0] not in COMPREHENSION_NAMES and make_behaviour_key(
            olds[key]
        ) != make_behaviour_key(news[key]):
            yield olds[key], news[key]
            yield from iterate_changed_nested_code(olds[key], news[key])


def _index_nested_code(code: CodeType) -> dict[tuple[str, int], CodeType]:
    counted: dict[str, int] = {}
    found = {}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            number = counted[constant.co_name] = counted.get(constant.co_name, -1) + 1
            found[(constant.co_name, number)] = constant
    return found


def make_behaviour_key(code: CodeType) -> tuple[Any, ...]:
    """What a code object does, without where it stands."""
    constants = [
        make_behaviour_key(c) if isinstance(c, CodeType) else (type(c), c) for c in code.co_consts
    ]
    return (code.co_code, code.co_names, code.co_varnames, code.co_freevars, tuple(constants))
