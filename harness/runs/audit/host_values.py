"""Arguments in the host's code, and tables of torch's functions by the properties they preserve."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from harness.runs.audit.expressions import Expression

ResultT = TypeVar("ResultT")
# Functions and methods that take the shape of the tensor that they make.
SHAPED_MAKERS = frozenset("empty zeros ones full new_empty new_zeros new_ones new_full".split())
TENSOR_MAKERS = SHAPED_MAKERS | set("arange tensor as_tensor empty_strided".split())
LIKE_MAKERS = frozenset("empty_like zeros_like ones_like full_like rand_like randn_like".split())
# Methods whose result has the same elements and begins with the same one.
_RESHAPES = frozenset(
    "contiguous view reshape clone flatten squeeze unsqueeze detach cuda unflatten view_as "
    "data".split()
)
SIZE_PRESERVING = _RESHAPES | set("zero_ fill_ to float half int long".split())
CONVERSIONS = frozenset("contiguous to cuda clone detach float half bfloat16 int long".split())
# Methods whose result's sizes follow from those of the tensor that they are called on.
SAME_TENSOR = _RESHAPES | set(
    "transpose t permute narrow expand empty_like zeros_like ones_like full_like T mT".split()
)


@dataclass(frozen=True, slots=True)
class HostValue:
    """One argument of one launch, as far as the host's code defines it."""

    kind: str = "unknown"  # tensor, number, constant, flag, real, unknown
    expression: Expression = ""
    value: Any = None  # the value of a constant
    dtype: str = ""  # torch's name of a tensor's type
    element_count: Expression | None = None  # a tensor's elements, if the function defines them
    test: Expression | None = None  # the test that a flag is
    is_certain: bool = True  # True if each name on the way is bound once

    @property
    def is_known(self) -> bool:
        return self.kind != "unknown"


class HostNames(Protocol):
    """The part of a `HostScope` that the analyses of shapes and preconditions use."""

    assignments: dict[str, tuple[ast.expr, int | None]]
    names_in_progress: set[str]
    followed_names: set[str]
    tensor_ranks: dict[str, int]

    def evaluate(self, node: ast.expr) -> HostValue: ...
    def to_number(self, node: ast.expr) -> Expression | None: ...
    def fold(self, name: str, *parts: Any) -> HostValue: ...
    def evaluate_with_certainty(
        self, evaluation: Callable[[], ResultT]
    ) -> tuple[ResultT, bool]: ...
