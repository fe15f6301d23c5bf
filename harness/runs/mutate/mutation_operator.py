"""The type of an operator: a name, the pull requests behind it, and its changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from harness.fixes.registry.schema import Symptom
from harness.runs.mutate.cpp_code import CppFunctionCode
from harness.runs.mutate.function_code import CodeChange, FunctionCode


@dataclass(frozen=True, slots=True)
class MutationOperator:
    """One kind of fault, in Python, in C++ or in both."""

    name: str
    title: str
    prs: tuple[int, ...]  # SGLang's fixes of bugs of this kind
    symptom: Symptom  # the usual effect on users
    find_changes: Callable[[FunctionCode], Iterator[CodeChange]] | None = None
    find_cpp_changes: Callable[[CppFunctionCode], Iterator[CodeChange]] | None = None

    def iterate_changes(self, function: FunctionCode | CppFunctionCode) -> Iterator[CodeChange]:
        if isinstance(function, CppFunctionCode):
            yield from self.find_cpp_changes(function) if self.find_cpp_changes else ()
        else:
            yield from self.find_changes(function) if self.find_changes else ()
