"""A module as its process imported it: the code that runs, and where its definitions are."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import lru_cache
from types import CodeType, MappingProxyType, ModuleType

from harness.patching import live_functions
from harness.patching.import_hook import PatchedLoader


def compile_running_code(module: ModuleType, original_text: str, filename: str) -> CodeType:
    """Return the code that the module runs; an import under toggles has compiled counters in."""
    loader = getattr(module.__spec__, "loader", None)
    if isinstance(loader, PatchedLoader):
        return loader.compiled.code
    return compile_unpatched(original_text, filename)


def preload_module_text(text: str, filename: str) -> None:
    """Compile and parse a module before forking, so that no fork has to."""
    compile_unpatched(text, filename)
    parse_definitions(text)


@lru_cache(maxsize=8)
def compile_unpatched(text: str, filename: str) -> CodeType:
    """Return a module's code without toggles; cached, as one module often has many toggles."""
    return compile(text, filename, "exec", dont_inherit=True)


@lru_cache(maxsize=8)
def parse_definitions(text: str) -> Mapping[live_functions.DefinitionPath, ast.AST]:
    return MappingProxyType(dict(live_functions.iterate_definitions(ast.parse(text))))
