"""What a launching function says of an argument, and what is asked of whoever reads it."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from harness.audit.expressions import Expression

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Given:
    """One argument of one launch: what it is, as far as the host's code says it."""

    kind: str = "unknown"  # tensor, number, constant, unknown
    expression: Expression = ""
    value: Any = None  # of a constant
    dtype: str = ""  # of a tensor, as torch calls it
    elements: Expression | None = None  # of a tensor that the function makes itself
    test: Expression | None = None  # of a flag
    sure: bool = True  # no name on the way is bound to one thing and then to another

    @property
    def is_known(self) -> bool:
        return self.kind != "unknown"


class Host(Protocol):
    """A function's names just before a line."""

    assigned: dict[str, tuple[ast.expr, int | None]]
    following: set[str]
    touched: set[str]
    ranks: dict[str, int]

    def given(self, node: ast.expr) -> Given: ...
    def number(self, node: ast.expr) -> Expression | None: ...
    def folded(self, name: str, *parts: Any) -> Given: ...
    def surely(self, follow: Callable[[], Found]) -> tuple[Found, bool]: ...
