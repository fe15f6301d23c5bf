"""What a fix adds to an imported module, as live patches: functions, methods and imported names."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, ModuleType
from typing import Any

from harness.core.errors import PatchError
from harness.patching import live_functions
from harness.patching.instrumentation import FUNCTION_NODES, is_jit_function
from harness.patching.live_patches import ClassAttributePatch, LivePatch, ModuleNamePatch

CompileFunction = Callable[[ast.FunctionDef | ast.AsyncFunctionDef], CodeType]


def make_added_functions(
    module: ModuleType,
    patched_text: str,
    original_definitions: Mapping[live_functions.DefinitionPath, ast.AST],
    compile_function: CompileFunction,
) -> Iterator[LivePatch]:
    """Make the functions that the patched text alone has, in the module or in a class of it."""
    for path, node in live_functions.iterate_definitions(ast.parse(patched_text)):
        outer = original_definitions.get(path[:-1])
        is_inside = isinstance(outer, FUNCTION_NODES) or (path[:-1] and outer is None)
        if path in original_definitions or is_inside:
            continue
        name = path[-1][0]
        holder = live_functions.find_bound_object(module, path[:-1])
        if not isinstance(node, FUNCTION_NODES) or is_jit_function(node):
            raise PatchError(f"{name}: a class or a kernel cannot be added live, only at import")
        if name in vars(holder) or _needs_class_cell(node):
            raise PatchError(
                f"{name}: a second definition, or one with super(), is added at import"
            )
        names: dict[str, Any] = {}
        exec(compile_function(node), vars(module), names)
        is_method = isinstance(holder, type)
        kind = ClassAttributePatch if is_method else ModuleNamePatch
        yield kind(holder if is_method else vars(holder), name, names[name])


def _needs_class_cell(function: ast.AST) -> bool:
    names = (node.id for node in ast.walk(function) if isinstance(node, ast.Name))
    return any(name in ("super", "__class__") for name in names)


def make_added_names(module: ModuleType, imported: dict[str, Any]) -> Iterator[LivePatch]:
    """Make the imported names that the module lacks; a name that it no longer imports stays."""
    for name in imported.keys() - vars(module).keys():
        yield ModuleNamePatch(vars(module), name, imported[name])
