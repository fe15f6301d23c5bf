"""Finds the modules that hold a copy of a constant (`from m import NAME`)."""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any


def find_importers(module: ModuleType, name: str, value: Any) -> list[tuple[ModuleType, str]]:
    """Find the loaded modules that import a constant, and its name there; follow re-exports."""
    importers: dict[tuple[str, str], tuple[ModuleType, str]] = {}
    waiting = [(module, name)]
    while waiting:
        source, source_name = waiting.pop()
        for other, key in _iterate_direct_importers(source, source_name, value):
            if (other.__name__, key) not in importers and other is not module:
                importers[(other.__name__, key)] = (other, key)
                waiting.append((other, key))
    return list(importers.values())


def _iterate_direct_importers(
    module: ModuleType, name: str, value: Any
) -> Iterator[tuple[ModuleType, str]]:
    for other in list(sys.modules.values()):
        if other is module or not isinstance(other, ModuleType):
            continue
        names = [key for key, bound in list(vars(other).items()) if bound is value]
        if names:
            imported = _find_imported_names(other, module.__name__, name)
            yield from ((other, key) for key in names if key in imported)


def _find_imported_names(importer: ModuleType, source: str, name: str) -> set[str]:
    text = read_source_text(importer)
    if not _may_import(text, source.rpartition(".")[2], name):
        return set()
    package = (importer.__package__ or "").split(".")
    imported = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            if ".".join([*base, *([node.module] if node.module else [])]) == source:
                for alias in node.names:
                    if alias.name == name:
                        imported.add(alias.asname or name)
                    elif alias.name == "*":
                        imported.add(name)
    return imported


def _may_import(text: str, module_name: str, name: str) -> bool:
    """Test the text only: hundreds of modules have a 1 or a None, and parsing all is slow."""
    all_of_it = re.search(r"import\s*\*", text)
    if not all_of_it and (name not in text or not re.search(rf"\b{name}\b", text)):
        return False
    named, beside = rf"[\s\\]+[\w.]*\b{module_name}[\s\\]+", r"[\s\\]*\.[.\s\\]*"
    return bool(re.search(rf"\bfrom(?:{named}|{beside})import\b", text))


def read_source_text(module: ModuleType) -> str:
    """Read a module's source, or '' where there is none to read (built in, zipped, gone)."""
    path = getattr(module, "__file__", None) or ""
    return _read_text(path) if path.endswith(".py") and Path(path).is_file() else ""


@functools.lru_cache(maxsize=4096)
def _read_text(path: str) -> str:
    return Path(path).read_text(encoding="utf-8", errors="replace")
