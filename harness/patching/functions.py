"""Finding the live function objects that a definition in a source file became."""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from harness.patching.instrument import FUNCTIONS

# A definition's way down through a module: names, each with which one of that name it is.
Path = tuple[tuple[str, int], ...]
# Their frames live no longer than the call that holds them.
COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
HIDING_PLACES = ("__func__", "__wrapped__", "fget", "fset", "fdel", "func", "fn", "_fn")


def definitions(tree: ast.AST, prefix: Path = ()) -> Iterator[tuple[Path, ast.AST]]:
    """Every definition of a tree by its path, as the compiler nests code objects."""
    counted: dict[str, int] = {}
    yield from _definitions(tree, prefix, counted)


def _definitions(node: ast.AST, prefix: Path, counted: dict[str, int]) -> Iterator[Any]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (*FUNCTIONS, ast.ClassDef)):
            number = counted[child.name] = counted.get(child.name, -1) + 1
            path = (*prefix, (child.name, number))
            yield path, child
            yield from definitions(child, path)
        elif isinstance(child, (ast.stmt, ast.ExceptHandler, getattr(ast, "match_case", ()))):
            yield from _definitions(child, prefix, counted)


def code_at(code: CodeType, path: Path) -> CodeType:
    """The code object of a definition inside a compiled module."""
    for name, number in path:
        inner = [c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name]
        code = inner[number]
    return code


def first_line(definition: ast.AST) -> int:
    lines = [d.lineno for d in getattr(definition, "decorator_list", [])]
    return int(min([definition.lineno, *lines]))  # type: ignore[attr-defined]


def live_functions(
    module: ModuleType,
    path: Path,
    line: int,
    filename: str,
    code_of: Callable[[FunctionType], CodeType],
) -> list[FunctionType]:
    """The functions made by the definition that begins on `line`: usually one.

    `code_of` tells a function's own code, also while a toggle has given it another.
    """
    name = path[-1][0]

    def is_it(function: FunctionType) -> bool:
        code = code_of(function)
        return code.co_name == name and code.co_firstlineno == line and code.co_filename == filename

    start = bound(module, path)
    found = [f for f in functions_behind(start) if is_it(f)]
    if found:
        return list({id(f): f for f in found}.values())
    # Hidden by a decorator that keeps it out of sight: every function of the process is asked.
    with _frozen_too():
        return [f for f in gc.get_objects() if type(f) is FunctionType and is_it(f)]


def bound(module: ModuleType, path: Path) -> Any:
    """What a definition's name is bound to, as it lies in its module or class; None if nothing."""
    found: Any = module
    for name, _ in path:
        found = vars(found).get(name) if hasattr(found, "__dict__") else None
    return found


def caches_behind(found: Any) -> list[Any]:
    """The `lru_cache` wrappers around a function, whose kept answers another code would change."""
    caches = []
    for _ in range(16):
        if isinstance(found, functools._lru_cache_wrapper):
            caches.append(found)
        found = getattr(found, "__func__", None) or getattr(found, "__wrapped__", None)
        if found is None:
            break
    return caches


def functions_behind(found: Any, depth: int = 6) -> Iterator[FunctionType]:
    """The plain functions inside descriptors, wrappers, partials and decorators' closures."""
    if found is None or depth == 0:
        return
    if isinstance(found, FunctionType):
        yield found
        for cell in found.__closure__ or ():
            try:
                inner = cell.cell_contents
            except ValueError:
                continue  # a cell that nothing has filled yet
            if callable(inner) or isinstance(inner, (property, functools.partial)):
                yield from functions_behind(inner, depth - 1)
    if isinstance(found, type):
        return
    for name in HIDING_PLACES:
        try:
            inner = object.__getattribute__(found, name)
        except AttributeError:
            continue
        if inner is not found:
            yield from functions_behind(inner, depth - 1)


@contextlib.contextmanager
def _frozen_too() -> Iterator[None]:
    """Let the collector's lists hold what `gc.freeze` had taken out of them."""
    frozen = gc.get_freeze_count()
    if frozen:
        gc.unfreeze()
    try:
        yield
    finally:
        if frozen:
            gc.freeze()


def closures_of(code: CodeType) -> list[FunctionType]:
    """Every living function that runs this code object."""
    with _frozen_too():
        holders = gc.get_referrers(code)
    return [f for f in holders if type(f) is FunctionType and f.__code__ is code]


def nested_pairs(before: CodeType, after: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """The functions inside two versions of one function that differ, matched by name and order."""
    olds, news = _inner(before), _inner(after)
    for key in olds.keys() & news.keys():
        if key[0] not in COMPREHENSIONS and acts(olds[key]) != acts(news[key]):
            yield olds[key], news[key]
            yield from nested_pairs(olds[key], news[key])


def _inner(code: CodeType) -> dict[tuple[str, int], CodeType]:
    counted: dict[str, int] = {}
    found = {}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            number = counted[constant.co_name] = counted.get(constant.co_name, -1) + 1
            found[(constant.co_name, number)] = constant
    return found


def acts(code: CodeType) -> tuple[Any, ...]:
    """What a code object does, without where it stands."""
    constants = [acts(c) if isinstance(c, CodeType) else (type(c), c) for c in code.co_consts]
    return (code.co_code, code.co_names, code.co_varnames, code.co_freevars, tuple(constants))
