"""The objects that a live toggle changes; each patch reads, writes and restores one of them."""

from __future__ import annotations

from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any, NoReturn, Protocol

from harness.core.errors import PatchError
from harness.sanitizer.plugins.for_sglang import cached_answers
from harness.sanitizer.triton import jit_kernels

PATCHED_CODE = "<unfix "  # begins the file name of patched code
MISSING: Any = type("Missing", (), {"__repr__": lambda self: "MISSING"})()


def refuse_live_change(target: str, obstacle: str) -> NoReturn:
    raise PatchError(
        f"{target}: {obstacle} is evaluated once, during the import; "
        "toggle it at import (`unfix exec`, or the environment), not live"
    )


class LivePatch(Protocol):
    """One object that changes in place, so that every reference to it sees the change."""

    new_state: Any

    @property
    def key(self) -> tuple[Any, ...]: ...

    def read(self) -> Any: ...

    def write(self, state: Any) -> None: ...


@dataclass
class FunctionPatch:
    """A function's code and defaults; the function object itself stays the same."""

    function: FunctionType
    new_state: Any

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
class ModuleNamePatch:
    """A name in a module's dictionary."""

    scope: dict[str, Any]
    name: str
    new_state: Any

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
class ClassAttributePatch:
    """An attribute in a class's own dictionary."""

    cls: type
    name: str
    new_state: Any

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
class LruCachePatch:
    """The results in an `lru_cache`, which belong to the old code after a change."""

    target: Any
    new_state: Any = None

    @property
    def key(self) -> tuple[Any, ...]:
        return ("cache", id(self.target))

    def read(self) -> Any:
        return None

    def write(self, state: Any) -> None:
        self.target.cache_clear()


@dataclass
class KernelPatch:
    """All attributes of a kernel object, or of a wrapper with a cache."""

    target: Any
    new_state: Any

    @property
    def key(self) -> tuple[Any, ...]:
        return ("kernel", id(self.target))

    def read(self) -> Any:
        return dict(vars(self.target))

    def write(self, state: Any) -> None:
        attributes = vars(self.target)
        previous_function = attributes.get("fn")
        attributes.update(state)
        for name in attributes.keys() - state.keys():
            del attributes[name]
        if (
            isinstance(previous_function, FunctionType)
            and previous_function is not attributes.get("fn")
            and previous_function.__code__.co_filename.startswith(PATCHED_CODE)
        ):
            jit_kernels.drop_rewritten_function(previous_function)


@dataclass
class CallerKernelPatch(KernelPatch):
    """A compiled kernel that contains changed code or a changed constant: it compiles again."""

    new_state: Any = None

    def write(self, state: Any) -> None:
        vars(self.target).update(
            jit_kernels.make_uncompiled_attributes(self.target) if state is None else state
        )


@dataclass
class CachedAnswersPatch:
    """The answers that depend on a module, which belong to the old code after a change."""

    module: ModuleType
    new_state: Any = None

    @property
    def key(self) -> tuple[Any, ...]:
        return ("answers", self.module.__name__)

    def read(self) -> Any:
        return None

    def write(self, state: Any) -> None:
        cached_answers.forget_dependent_answers(self.module)
