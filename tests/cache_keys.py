"""Measures what each cache of the tree stands on, for the tests of their keys.

A cache is stale if code that can change its values may change without its key. So this module
measures which files of `harness` a computation imports, at any depth and also inside functions, and
computes a cache's key as a later process would that finds one of these files changed.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest
import test_layers

from harness.cli import guard_runs
from harness.core import code_digest, paths

# The caches, with the modules that call them. `core/cache` keeps all but the last three.
CACHES = {
    "registry": {"harness.fixes.registry.toggle_catalogue"},
    "states": {"harness.cli.list", "harness.fixes.matching.status_cache"},
    "reverts": {"harness.fixes.matching.status_cache"},
    "drift": {"harness.fixes.drift"},
    "proofs": {"harness.store.prove.recorded_proofs"},
    "audited releases": {"harness.runs.audit.release_audit"},
    "graphs": {
        "harness.sanitizer.triton.graph_loader",
        "harness.sanitizer.triton.specialization",
        "harness.runs.audit.kernel_graphs",
    },
    "programs": {
        "harness.sanitizer.cpu.program_cache",
        "harness.sanitizer.ptx.compiled_kernels",
        "harness.sanitizer.llvm.stored_code",
    },
    "registers": {"harness.sanitizer.cuda.registers"},
    "kernels of a release": {"harness.runs.audit.release_kernels"},
    "audited kernels": {"harness.runs.audit.analysis_worker"},
    "answers": {"fixtures.accuracy"},
    "plans": {"harness.patching.bootstrap"},
    "lines that guards run": {"harness.runs.mutate.line_coverage"},
    "captured launches": {"harness.runs.pr.changed_kernels"},
    "inventories": {"harness.runs.kernels.inventory"},
    "checked kernels in Triton's own cache": {"harness.sanitizer.gpu.compiler_hooks"},
}
CACHING_NAMES = {"get_or_compute", "save_cached", "DiskCache", "StatusCache"}


@dataclass(frozen=True)
class CacheCase:
    """A cache: the modules that compute its values, and its key as the code makes it."""

    name: str
    computed_by: tuple[str, ...]
    compute_key: Callable[[], str]

    def __str__(self) -> str:
        return self.name.replace(" ", "-")


@functools.cache
def _import_graph() -> dict[str, set[str]]:
    return test_layers.make_graph()


def measure_imports(modules: Sequence[str]) -> set[str]:
    """Return all modules that these import, directly or not."""
    graph, found, waiting = _import_graph(), set[str](), list(modules)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            package = name.rpartition(".")[0]  # runs before the module
            waiting += [*graph[name], *([package] if package in graph else [])]
    return found


def pair_with_folders(cases: Sequence[CacheCase]) -> list[Any]:
    """Return each cache with a file of ours in each folder that its values depend on."""
    files, pairs = test_layers.find_modules(), []
    for case in cases:
        imported = sorted(measure_imports(case.computed_by))
        ours = [files[name] for name in imported if name.partition(".")[0] == "harness"]
        for file in {file.parent: file for file in ours}.values():
            folder = file.parent.relative_to(paths.HARNESS_FOLDER.parent)
            pairs.append(pytest.param(case, file, id=f"{case}-{folder}"))
    return pairs


class ChangedCode:
    """Our code with one more byte in a file, as the next process finds it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch, self._changed = monkeypatch, Path()
        monkeypatch.setattr(
            code_digest, "read_file", lambda file: _read_file(file) + b"#" * (file == self._changed)
        )
        monkeypatch.setattr(code_digest, "iterate_files", _list_files)
        monkeypatch.setattr(guard_runs, "read_file", lambda file: code_digest.read_file(file))

    def compute_key(self, case: CacheCase, changed: Path = Path()) -> str:
        self._changed = changed
        _forget_digests()
        try:
            with self._patch.context() as patch:
                _renew_digests(patch)
                return case.compute_key()
        finally:
            self._changed = Path()
            _forget_digests()

    def get_unchanged_key(self, case: CacheCase) -> str:
        """Return the key of the code as it is, computed once for all tests of a case."""
        if case.name not in _UNCHANGED_KEYS:
            _UNCHANGED_KEYS[case.name] = self.compute_key(case)
        return _UNCHANGED_KEYS[case.name]


def _forget_digests() -> None:
    code_digest.digest_code.cache_clear()
    guard_runs._digest_unchanged_files.cache_clear()


_UNCHANGED_KEYS: dict[str, str] = {}


@functools.cache
def _read_file(file: Path) -> bytes:
    """Return a digest in place of the bytes: it changes with them, and is hashed at once."""
    return hashlib.sha256(file.read_bytes()).digest()


@functools.cache
def _list_files(place: Path, iterate: Callable[[Path], Any] = code_digest.iterate_files) -> Any:
    return tuple(iterate(place))


def _renew_digests(patch: pytest.MonkeyPatch) -> None:
    """Compute each module's digests of code anew, as the statements that do it when imported."""
    texts: dict[str, list[tuple[ModuleType, str]]] = {}
    for module in list_loaded_modules():
        for name, value in vars(module).items():
            if type(value) is str:
                texts.setdefault(value, []).append((module, name))
    renewed = [
        (module, name, statement, texts[getattr(module, name)])
        for module in list_loaded_modules()
        for name, statement in _find_digests(module.__name__).items()
    ]
    for module, name, statement, copies in renewed:
        scope = dict(vars(module))
        exec(statement, scope)
        for holder, own in copies:
            patch.setattr(holder, own, scope[name])


def list_loaded_modules() -> list[ModuleType]:
    ours = ("harness.", "fixtures.")
    return [module for name, module in [*sys.modules.items()] if name.startswith(ours)]


@functools.cache
def _find_digests(module: str) -> dict[str, CodeType]:
    """Find a module's assignments at its top level that call `digest_code`."""
    file = test_layers.find_modules().get(module)
    if file is None or "digest_code" not in (text := file.read_text()):
        return {}
    return {
        statement.targets[0].id: compile(ast.Module([statement], []), str(file), "exec")
        for statement in ast.parse(text).body
        if isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Name)
        and any(isinstance(n, ast.Name) and n.id == "digest_code" for n in ast.walk(statement))
    }


def list_callers(names: set[str]) -> set[str]:
    """List the modules of the project that call a function or class of one of these names."""
    texts = {module: file.read_text() for module, file in test_layers.find_modules().items()}
    return {
        module
        for module, text in texts.items()
        if any(name in text for name in names)
        and any(
            isinstance(node, ast.Call)
            and (getattr(node.func, "id", "") or getattr(node.func, "attr", "")) in names
            for node in ast.walk(ast.parse(text))
        )
    }
