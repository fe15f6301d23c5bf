"""The stand-in mechanism: a module that imports like a real package and refuses to run.

On the virtual device names of such modules compute (`packages.py` of the sanitizer's plug-in for
SGLang).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from types import MappingProxyType, ModuleType
from typing import Any

Function = Callable[..., Any]

_provided: dict[str, dict[str, Function]] = {}


class RefusingName:
    """A name inside a stand-in; calling it runs the function that a suite provided for it.

    The function is looked up at the call, so `from sgl_kernel import x` may run before a suite
    provides `x`.
    """

    def __init__(self, package: str, path: str) -> None:
        self._package = package
        self._path = path
        self.__name__ = self.__qualname__ = path.rpartition(".")[2]
        self.__module__ = package

    def __getattr__(self, name: str) -> Any:
        if _is_dunder(name):
            raise AttributeError(name)
        inner = type(self)(self._package, f"{self._path}.{name}".lstrip("."))
        setattr(self, name, inner)  # the same object each time: SGLang compares scalar types
        return inner

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        functions = _provided[self._package]
        function = functions.get(self._path) or functions.get(self.__name__)
        if function is None:
            raise RuntimeError(
                f"stand-in for {self._package}: {self._path} needs the real package on a GPU"
            )
        return function(*args, **kwargs)

    def __mro_entries__(self, bases: object) -> tuple[type, ...]:
        return (type(self.__name__, (), {}),)  # a subclass can be defined, but not instantiated

    def __or__(self, other: object) -> Any:
        return Any  # `Refused | None` in an annotation that is evaluated

    __ror__ = __or__

    def __repr__(self) -> str:
        return f"<stand-in for {self._package}.{self._path}>"


class RefusingModule(ModuleType):
    """A module of a stand-in: every unknown name is a RefusingName."""

    name_class: type[RefusingName] = RefusingName

    def __getattr__(self, name: str) -> Any:
        if _is_dunder(name):
            raise AttributeError(f"stand-in module {self.__name__!r} has no {name!r}")
        package, _, path = f"{self.__name__}.{name}".partition(".")
        refusing = self.name_class(package, path)
        setattr(self, name, refusing)
        return refusing


class _Submodules:
    """Finds any submodule of a stand-in; last on sys.meta_path, so that a real one wins."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name.partition(".")[0] not in _provided:
            return None
        return ModuleSpec(name, _Submodules, is_package=True)  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: ModuleSpec) -> ModuleType:
        return RefusingModule(spec.name)

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        """Do nothing: __getattr__ creates the names."""


def stand_in(package: str) -> None:
    """Turn the module that is being imported as `package` into a stand-in."""

    def provide(name: str, function: Function) -> None:
        """Run `function` where `name` (`submodule.function`, or the function alone) is called."""
        _provided[package][name] = function

    def withdraw(name: str) -> None:
        """Refuse `name` again."""
        del _provided[package][name]

    module = sys.modules[package]
    module.__class__ = RefusingModule
    module.__path__ = []
    functions = _provided.setdefault(package, {})
    provided: Mapping[str, Function] = MappingProxyType(functions)
    module.__dict__["__unfix_provide__"] = provide
    module.__dict__["__unfix_withdraw__"] = withdraw
    module.__dict__["__unfix_provided__"] = provided
    if _Submodules not in sys.meta_path:
        sys.meta_path.append(_Submodules)


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")
