"""The type of an operator: a name, the pull requests behind it, and its changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from harness.fixes.registry.schema import Symptom
from harness.runs.mutate.function_code import CodeChange, FunctionCode


@dataclass(frozen=True, slots=True)
class MutationOperator:
    """One kind of fault."""

    name: str
    title: str
    prs: tuple[int, ...]  # SGLang's fixes of bugs of this kind
    symptom: Symptom  # the usual effect on users
    find_changes: Callable[[FunctionCode], Iterator[CodeChange]]
