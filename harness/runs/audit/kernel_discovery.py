"""The kernels of a release, each with its launches, by syntax alone."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from triton.runtime.jit import JITFunction

from harness.runs.audit import launch_sites
from harness.runs.audit.host_scope import HostLaunch
from harness.runs.audit.lazy_release import LazyRelease, is_kernel
from harness.runs.audit.syntax_walk import iterate_children, walk_tree
from harness.sanitizer.triton.recorded_launches import LaunchMode

_LAUNCH_PATTERN = re.compile(r"\b(\w+)\)*\s*\[")


@dataclass(slots=True)
class SourceKernel:
    """A kernel by syntax: its definition, its launches, and the kernels that call it."""

    module: str
    node: ast.FunctionDef
    launches: list[HostLaunch] = field(default_factory=list)
    callers: set[str] = field(default_factory=set)
    recorded_launches: Sequence[LaunchMode] = ()  # the modes of recorded launches

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def is_helper(self) -> bool:
        return not self.launches and bool(self.callers)


def collect_kernels(release: LazyRelease) -> list[SourceKernel]:
    kernels: dict[str, list[SourceKernel]] = defaultdict(list)
    texts = dict(release.iterate_texts())
    for name, text in texts.items():
        module = release.find_module(name) if "jit" in text and "triton" in text else None
        for node in _iterate_functions(module.tree) if module is not None else ():
            if is_kernel(node):
                kernels[node.name].append(SourceKernel(name, node))
    for name, text in texts.items():
        if kernels.keys() & set(_LAUNCH_PATTERN.findall(text)):
            _attach_launches(release, name, kernels)
    for caller in [one for same in kernels.values() for one in same]:
        for called in _iterate_called_names(caller.node):
            for one in kernels.get(called, ()):
                if one is not caller:
                    one.callers.add(caller.name)
    return [one for same in kernels.values() for one in same]


def _attach_launches(
    release: LazyRelease, module_name: str, kernels: dict[str, list[SourceKernel]]
) -> None:
    module = release.find_module(module_name)
    assert module is not None
    for kernel, launch in launch_sites.find_launches(module, kernels.keys()):
        same = kernels[kernel]
        launched = [each for each in same if each.module == module_name]
        if not launched and len(same) > 1:
            value = module.names.get(kernel)
            while value is not None and not isinstance(value, JITFunction):
                value = getattr(value, "fn", None)
            launched = [each for each in same if value and each.module == value.fn.__module__]
        for each in launched or same[:1]:
            each.launches.append(launch)


def _iterate_functions(node: ast.AST) -> Iterator[ast.FunctionDef]:
    """Iterate functions at any depth of statements; skip expressions, most of a module."""
    for child in iterate_children(node):
        if isinstance(child, ast.FunctionDef):
            yield child
        if isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case)):
            yield from _iterate_functions(child)


def _iterate_called_names(node: ast.FunctionDef) -> Iterator[str]:
    for inner in walk_tree(node):
        if isinstance(inner, ast.Call):
            if isinstance(inner.func, ast.Name):
                yield inner.func.id
            yield from (one.id for one in inner.args if isinstance(one, ast.Name))
