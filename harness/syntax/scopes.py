"""Finding a target in a module's source by its qualified name, without importing it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from ast_grep_py import SgNode, SgRoot
from packaging.version import Version

DEFINITIONS = ("function_definition", "class_definition")


@dataclass(frozen=True)
class ModuleSource:
    """The text of one module of one release; parsed once."""

    module: str
    path: str
    text: str

    @cached_property
    def root(self) -> SgNode:
        return SgRoot(self.text, "python").root()

    def scopes(self, qualname: str) -> list[SgNode]:
        """Every definition of that name; the two arms of an `if` may both hold one."""
        if not qualname:
            return [self.root]
        found = [self.root]
        for name in qualname.split("."):
            found = [inner for outer in found for inner in definitions(undecorated(outer), name)]
        return found

    def definition_names(self) -> Iterator[str]:
        """Every qualified name defined here, for saying what stands near a missing one."""
        yield from _names(self.root, "")


def definitions(scope: SgNode, name: str | None = None) -> Iterator[SgNode]:
    """The definitions right inside a scope: through `if` and `try`, not into other definitions."""
    for child in scope.children():
        kind = child.kind()
        if kind == "decorated_definition":
            # The decorators belong to the target: an edit may be about one of them.
            inner = child.field("definition")
            if inner is not None and (name is None or defined_name(inner) == name):
                yield child
        elif kind in DEFINITIONS:
            if name is None or defined_name(child) == name:
                yield child
        elif child.is_named() and not child.is_leaf() and kind != "expression_statement":
            yield from definitions(child, name)


def undecorated(definition: SgNode) -> SgNode:
    return definition.field("definition") or definition


def defined_name(definition: SgNode) -> str:
    name = undecorated(definition).field("name")
    return name.text() if name is not None else ""


def _names(scope: SgNode, prefix: str) -> Iterator[str]:
    for definition in definitions(scope):
        qualified = prefix + defined_name(definition)
        yield qualified
        yield from _names(undecorated(definition), qualified + ".")


class Sources(Protocol):
    """A release's sources, wherever they lie."""

    @property
    def version(self) -> Version | None: ...

    def read(self, module: str) -> ModuleSource | None: ...

    def modules(self) -> Iterator[str]: ...
