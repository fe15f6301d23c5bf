"""Finds a definition in a module's source by its qualified name, without importing the module."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from packaging.version import Version

if TYPE_CHECKING:  # a suite under check runs in a Python that need not have ast-grep
    from ast_grep_py import SgNode

DEFINITION_KINDS = ("function_definition", "class_definition")


@dataclass(frozen=True)
class ModuleSource:
    """The text of one module of one release; parsed once."""

    module: str
    path: str
    text: str

    @cached_property
    def root(self) -> SgNode:
        return _parse_python(self.text)

    @cached_property
    def statement_spans(self) -> list[tuple[int, int]]:
        """The first character and the end of each statement of the module's own body."""
        places = (statement.range() for statement in self.root.children())
        return [(place.start.index, place.end.index) for place in places]

    @property
    def relative_path(self) -> str:
        """Its path from the folder of the package."""
        return self.module.replace(".", "/") + ".py"

    def find_scopes(self, qualname: str) -> list[Any]:
        """Find every definition of that name, each a node: both arms of an `if` may define it."""
        if not qualname:
            return [self.root]
        found = [self.root]
        for name in qualname.split("."):
            found = [
                inner
                for outer in found
                for inner in iterate_definitions(strip_decorators(outer), name)
            ]
        return found

    def get_lines(self, scope: Any) -> tuple[int, int]:
        """Return the first and the last line of a scope, from 0."""
        where = scope.range()
        return where.start.line, where.end.line

    def iterate_definition_names(self) -> Iterator[str]:
        """Yield every qualified name that the module defines."""
        yield from _iterate_qualified_names(self.root, "")


def iterate_definitions(scope: SgNode, name: str | None = None) -> Iterator[SgNode]:
    """Yield the definitions directly in a scope, including those under `if` and `try`."""
    for child in scope.children():
        kind = child.kind()
        if kind == "decorated_definition":
            # The decorators belong to the target: an edit may be about one of them.
            inner = child.field("definition")
            if inner is not None and (name is None or get_defined_name(inner) == name):
                yield child
        elif kind in DEFINITION_KINDS:
            if name is None or get_defined_name(child) == name:
                yield child
        elif child.is_named() and not child.is_leaf() and kind != "expression_statement":
            yield from iterate_definitions(child, name)


def strip_decorators(definition: SgNode) -> SgNode:
    return definition.field("definition") or definition


def get_defined_name(definition: SgNode) -> str:
    name = strip_decorators(definition).field("name")
    return name.text() if name is not None else ""


def _iterate_qualified_names(scope: SgNode, prefix: str) -> Iterator[str]:
    for definition in iterate_definitions(scope):
        qualified = prefix + get_defined_name(definition)
        yield qualified
        yield from _iterate_qualified_names(strip_decorators(definition), qualified + ".")


@lru_cache(maxsize=8)
def _parse_python(text: str) -> SgNode:
    """Parse a text; the last ones are remembered, since a plan and its reversal parse the same."""
    from ast_grep_py import SgRoot

    return SgRoot(text, "python").root()


class ReleaseSources(Protocol):
    """The sources of a release, by module."""

    @property
    def version(self) -> Version | None: ...

    def read(self, module: str) -> ModuleSource | None: ...

    def modules(self) -> Iterator[str]: ...

    def cpp_sources(self) -> Iterator[str]: ...
