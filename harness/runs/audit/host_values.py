"""What a launching function says of an argument, and what is asked of whoever reads it."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from harness.runs.audit.expressions import Expression

FollowedT = TypeVar("FollowedT")


@dataclass(frozen=True, slots=True)
class HostValue:
    """One argument of one launch: what it is, as far as the host's code says it."""

    kind: str = "unknown"  # tensor, number, constant, unknown
    expression: Expression = ""
    value: Any = None  # of a constant
    dtype: str = ""  # of a tensor, as torch calls it
    element_count: Expression | None = None  # of a tensor that the function makes itself
    test: Expression | None = None  # of a flag
    is_certain: bool = True  # no name on the way is bound to one thing and then to another

    @property
    def is_known(self) -> bool:
        return self.kind != "unknown"


class HostScopeProtocol(Protocol):
    """A function's names just before a line."""

    assignments: dict[str, tuple[ast.expr, int | None]]
    names_in_progress: set[str]
    followed_names: set[str]
    tensor_ranks: dict[str, int]

    def evaluate(self, node: ast.expr) -> HostValue: ...
    def to_number(self, node: ast.expr) -> Expression | None: ...
    def fold(self, name: str, *parts: Any) -> HostValue: ...
    def evaluate_with_certainty(
        self, evaluation: Callable[[], FollowedT]
    ) -> tuple[FollowedT, bool]: ...
