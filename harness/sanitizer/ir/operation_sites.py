"""The operations of a kernel that a report may name."""

from __future__ import annotations

from dataclasses import dataclass

from harness.sanitizer.ir.graph import SourceLocation


@dataclass(frozen=True, slots=True)
class OperationSite:
    """An operation that a report names by its number."""

    label: str  # "read", "write", "update", an operator, or an assertion's message
    element: str
    source: SourceLocation
    argument: int | None = None
    memory_order: int = 0  # of an atomic: Triton's number
