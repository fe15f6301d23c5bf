"""Which kernels a release has, and which launches of each."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from triton.runtime.jit import JITFunction

from harness.audit import launches
from harness.audit.host import Launch
from harness.audit.loading import World, is_kernel
from harness.audit.syntax import children, walk
from harness.kernels.launched import Launched

_LAUNCHED = re.compile(r"\b(\w+)\)*\s*\[")


@dataclass(slots=True)
class Kernel:
    """A kernel by syntax: where it stands, who launches it and which others it is a part of."""

    module: str
    node: ast.FunctionDef
    launches: list[Launch] = field(default_factory=list)
    callers: set[str] = field(default_factory=set)
    ways: Sequence[Launched] = ()  # in which it was launched, on a machine

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def is_helper(self) -> bool:
        return not self.launches and bool(self.callers)


def collected(world: World) -> list[Kernel]:
    kernels: dict[str, list[Kernel]] = defaultdict(list)
    texts = dict(world.texts())
    for name, text in texts.items():
        module = world.module(name) if "jit" in text and "triton" in text else None
        for node in _functions(module.code) if module is not None else ():
            if is_kernel(node):
                kernels[node.name].append(Kernel(name, node))
    for name, text in texts.items():
        if kernels.keys() & set(_LAUNCHED.findall(text)):
            _launched(world, name, kernels)
    for caller in [one for same in kernels.values() for one in same]:
        for called in _called(caller.node):
            for one in kernels.get(called, ()):
                if one is not caller:
                    one.callers.add(caller.name)
    return [one for same in kernels.values() for one in same]


def _launched(world: World, name: str, kernels: dict[str, list[Kernel]]) -> None:
    module = world.module(name)
    assert module is not None
    for kernel, launch in launches.launches(module, kernels.keys()):
        same = kernels[kernel]
        here = [one for one in same if one.module == name]
        if not here and len(same) > 1:
            meant = module.names.get(kernel)
            while meant is not None and not isinstance(meant, JITFunction):
                meant = getattr(meant, "fn", None)
            here = [one for one in same if meant and one.module == meant.fn.__module__]
        for one in here or same[:1]:
            one.launches.append(launch)


def _functions(node: ast.AST) -> Iterator[ast.FunctionDef]:
    """However deep among statements; expressions, most of a module, are not looked into."""
    for child in children(node):
        if isinstance(child, ast.FunctionDef):
            yield child
        if isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case)):
            yield from _functions(child)


def _called(node: ast.FunctionDef) -> Iterator[str]:
    for inner in walk(node):
        if isinstance(inner, ast.Call):
            if isinstance(inner.func, ast.Name):
                yield inner.func.id
            yield from (one.id for one in inner.args if isinstance(one, ast.Name))
