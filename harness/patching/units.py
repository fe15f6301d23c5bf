"""The things a live toggle changes, each of which knows how to be read and put back exactly."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Protocol

MISSING: Any = type("Missing", (), {"__repr__": lambda self: "MISSING"})()


class Unit(Protocol):
    """One thing that is changed in place, so that everybody who holds it sees the change."""

    new: Any

    @property
    def key(self) -> tuple[Any, ...]: ...

    def read(self) -> Any: ...

    def write(self, state: Any) -> None: ...


@dataclass
class FunctionUnit:
    """A function's code and defaults: the function object stays the one that others imported."""

    function: FunctionType
    new: Any

    @property
    def key(self) -> tuple[Any, ...]:
        return ("function", id(self.function))

    def read(self) -> Any:
        function = self.function
        return function.__code__, function.__defaults__, function.__kwdefaults__

    def write(self, state: Any) -> None:
        function = self.function
        function.__code__, function.__defaults__, function.__kwdefaults__ = state


@dataclass
class NameUnit:
    """A name in a module's dictionary."""

    scope: dict[str, Any]
    name: str
    new: Any

    @property
    def key(self) -> tuple[Any, ...]:
        return ("name", id(self.scope), self.name)

    def read(self) -> Any:
        return self.scope.get(self.name, MISSING)

    def write(self, state: Any) -> None:
        if state is MISSING:
            self.scope.pop(self.name, None)
        else:
            self.scope[self.name] = state


@dataclass
class ClassUnit:
    """An attribute that stands in a class's own body."""

    cls: type
    name: str
    new: Any

    @property
    def key(self) -> tuple[Any, ...]:
        return ("class", id(self.cls), self.name)

    def read(self) -> Any:
        return vars(self.cls).get(self.name, MISSING)

    def write(self, state: Any) -> None:
        if state is not MISSING:
            setattr(self.cls, self.name, state)
        elif self.name in vars(self.cls):
            delattr(self.cls, self.name)


@dataclass
class ObjectUnit:
    """All attributes of an object that keeps its state in its dictionary, as kernels do."""

    target: Any
    new: Any
    on_leave: Any = field(default=None)

    @property
    def key(self) -> tuple[Any, ...]:
        return ("object", id(self.target))

    def read(self) -> Any:
        return dict(vars(self.target))

    def write(self, state: Any) -> None:
        attributes = vars(self.target)
        leaving = attributes.get("fn")
        attributes.update(state)
        for name in attributes.keys() - state.keys():
            del attributes[name]
        if self.on_leave is not None and leaving is not attributes.get("fn"):
            self.on_leave(leaving)
