"""A C++ or CUDA source of a release, with the scopes that a toggle's target names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from harness.core.cpp_tokens import CppText, CppToken
from harness.core.source_scopes import ModuleSource


@dataclass(frozen=True, slots=True)
class CppScope:
    """A definition, or a whole source: a run of its tokens."""

    code: CppText
    first: int
    end: int  # exclusive

    @property
    def tokens(self) -> list[CppToken]:
        return self.code.tokens


@dataclass(frozen=True)
class CppSource(ModuleSource):
    """`module` is the path from the folder of the package: 'sglang/kernels/jit/csrc/…/rope.cuh'."""

    @cached_property
    def code(self) -> CppText:
        return CppText(self.text)

    @property
    def relative_path(self) -> str:
        return self.module

    def find_scopes(self, qualname: str) -> list[CppScope]:
        """Find every definition of that name: overloads, and branches of the preprocessor."""
        if not qualname:
            return [CppScope(self.code, 0, len(self.code.tokens))]
        found = (definition for definition in self.code.definitions if definition.name == qualname)
        return [CppScope(self.code, definition.first, definition.end) for definition in found]

    def get_lines(self, scope: CppScope) -> tuple[int, int]:
        if scope.first == scope.end:
            return 0, 0
        first, last = scope.tokens[scope.first].start, scope.tokens[scope.end - 1].end
        return self.text.count("\n", 0, first), self.text.count("\n", 0, last)

    def iterate_definition_names(self) -> Iterator[str]:
        yield from dict.fromkeys(definition.name for definition in self.code.definitions)
