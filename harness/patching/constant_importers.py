"""Who took a module's constant over by `from module import NAME`, and what was made out of it."""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.patching.instrumentation import FUNCTION_NODES


def find_importers(module: ModuleType, name: str, value: Any) -> list[tuple[ModuleType, str]]:
    """The loaded modules that hold the name's value, as what, re-exports followed."""
    found: dict[tuple[str, str], tuple[ModuleType, str]] = {}
    waiting = [(module, name)]
    while waiting:
        source, taken = waiting.pop()
        for other, key in _iterate_direct_importers(source, taken, value):
            if (other.__name__, key) not in found and other is not module:
                found[(other.__name__, key)] = (other, key)
                waiting.append((other, key))
    return list(found.values())


def _iterate_direct_importers(
    module: ModuleType, name: str, value: Any
) -> Iterator[tuple[ModuleType, str]]:
    for other in list(sys.modules.values()):
        if other is module or not isinstance(other, ModuleType):
            continue
        held = [key for key, found in list(vars(other).items()) if found is value]
        if held:
            taken = _find_imported_names(other, module.__name__, name)
            yield from ((other, key) for key in held if key in taken)


def _find_imported_names(importer: ModuleType, source: str, name: str) -> set[str]:
    text = read_source_text(importer)
    if not _may_import(text, source.rpartition(".")[2], name):
        return set()
    package = (importer.__package__ or "").split(".")
    taken = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            if ".".join([*base, *([node.module] if node.module else [])]) == source:
                for alias in node.names:
                    if alias.name == name:
                        taken.add(alias.asname or name)
                    elif alias.name == "*":
                        taken.add(name)
    return taken


def _may_import(text: str, module_name: str, name: str) -> bool:
    """By a look: to parse the hundreds of modules that hold a 1 or a None takes far longer."""
    all_of_it = re.search(r"import\s*\*", text)
    if not all_of_it and (name not in text or not re.search(rf"\b{name}\b", text)):
        return False
    named, beside = rf"[\s\\]+[\w.]*\b{module_name}[\s\\]+", r"[\s\\]*\.[.\s\\]*"
    return bool(re.search(rf"\bfrom(?:{named}|{beside})import\b", text))


def read_source_text(module: ModuleType) -> str:
    """A module's source, or '' where there is none to read (built in, zipped, gone)."""
    path = getattr(module, "__file__", None) or ""
    return _read_text(path) if path.endswith(".py") and Path(path).is_file() else ""


@functools.lru_cache(maxsize=4096)
def _read_text(path: str) -> str:
    return Path(path).read_text(encoding="utf-8", errors="replace")


def find_derived_line(tree: ast.AST, name: str) -> int | None:
    """The line where a default, a decorator or another constant read a name for good, if any."""
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, FUNCTION_NODES)
        for part in function.body
        for node in ast.walk(part)
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Name)
            and node.id == name
            and isinstance(node.ctx, ast.Load)
            and id(node) not in inside
        ):
            return node.lineno
    return None
