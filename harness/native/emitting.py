"""What the parts of the lowering ask of the whole: its code so far, its rooms, its lanes."""

from __future__ import annotations

from typing import Protocol

from harness.kernels.flow import Addressing
from harness.kernels.graph import Kind, Operation, Value
from harness.native.text import Function

Lane = tuple[str, str | None]  # a value in a register, and its twin
Known = dict[tuple[Value, str], Lane]


class Wraps(Protocol):
    """Twins of integers that lead to addresses."""

    scalars: dict[Value, str]
    buffers: dict[Value, str]

    def united(self, twins: list[str]) -> str | None: ...
    def made(self, result: Value, room: str) -> None: ...

    def remembered(
        self,
        site: int,
        wrapped: str,
        signed: bool,
        left: tuple[str, str],
        right: tuple[str, str],
        result: tuple[str, str],
        united: str | None,
    ) -> str: ...


class Values(Protocol):
    """Where the values of a kernel are."""

    exact: bool
    code: Function
    addressing: Addressing
    scalars: dict[Value, str]
    buffers: dict[Value, str]
    globals: list[str]

    @property
    def wraps(self) -> Wraps: ...

    def site(
        self, what: str, operation: Operation, element: str, argument: int | None = None
    ) -> int: ...

    def room(self, size: int) -> str: ...
    def room_for(self, kind: Kind) -> str: ...
    def address(self, room: str) -> str: ...
    def load_lane(self, room: str, element: str, index: str) -> str: ...
    def store_lane(self, value: str, room: str, element: str, index: str) -> None: ...
    def copy(self, target: str, source: str, size: int) -> None: ...
    def lane(self, value: Value, index: str, known: Known) -> Lane: ...
    def held(self, *values: Value) -> None: ...
    def kept(self, base: str) -> str: ...
    def made(self, result: Value, room: str) -> None: ...


class Emitter(Values, Protocol):
    """And what is done with them."""

    def operation(self, operation: Operation) -> None: ...

    def access(
        self,
        verb: str,
        operation: Operation,
        mask: Value | None,
        values: str,
        other: Value | None = None,
    ) -> str: ...
