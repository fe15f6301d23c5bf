"""What an operator is: a name, the pull requests that it was learnt from, and where it fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from harness.mutate.code import Change, FunctionCode
from harness.registry.schema import Symptom


@dataclass(frozen=True, slots=True)
class Operator:
    """One kind of fault."""

    name: str
    title: str
    prs: tuple[int, ...]  # SGLang's, which mended bugs of this kind
    symptom: Symptom  # what it mostly does to whoever runs it
    find: Callable[[FunctionCode], Iterator[Change]]
