"""The CUDA packages that a GPU machine has installed beside SGLang, importable here.

A module of such a package has every name: a name with a stand-in computes, any other raises
UnansweredName when it is called, with the line that called it. Importing a name raises nothing, as
on a GPU; it is counted in the record. Versions are the ones that the installed SGLang requires.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import itertools
import re
import sys
from collections.abc import Iterable, Sequence
from email.message import Message
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

from harness.core.refusing_module import RefusingModule, RefusingName
from harness.sanitizer.device.callers import find_caller
from harness.sanitizer.device.record import RECORD
from harness.sanitizer.device.refusals import UnansweredName
from harness.sanitizer.device.stand_ins import call_stand_in, has_stand_in
from harness.sanitizer.device.torch_cuda import CUDA_VERSION

# Import name: the distributions that hold it, by release.
PACKAGES = {
    "sgl_kernel": ("sglang-kernel", "sgl-kernel"),
    "flashinfer": ("flashinfer-python", "flashinfer-cubin"),
    "deep_gemm": ("sgl-deep-gemm",),
    "flash_mla": ("sgl-flash-mla",),
    "cutlass": ("nvidia-cutlass-dsl",),
    "cuda": ("cuda-python",),
    "quack": ("quack-kernels",),
}
# Libraries that torch for CUDA brings along: SGLang asks for their version alone.
_LIBRARIES = {"nvidia-cublas": f"{CUDA_VERSION}.0"}
_OPERATOR_NAMESPACES = ("sgl_kernel",)  # of torch.ops
# Kernels in Python: their decorators and types run at import, and the kernels never do.
_LANGUAGES = frozenset({"cutlass", "cuda", "quack"})


class PackageName(RefusingName):
    """A name inside a package: called, it runs its stand-in."""

    def __getattr__(self, name: str) -> Any:
        return self if name == "default" else super().__getattr__(name)  # an only overload

    def __call__(self, *args: Any, **options: Any) -> Any:
        name = f"{self._package}.{self._path}"
        if self._package in _LANGUAGES and not has_stand_in(name) and _is_module_level():
            is_decorator = len(args) == 1 and callable(args[0]) and not options
            return args[0] if is_decorator else self
        return call_stand_in(name, args, options)

    def __int__(self) -> int:
        """Return the number of an enumeration's member: its stand-in takes no arguments."""
        return int(call_stand_in(f"{self._package}.{self._path}", (), {}))

    def __getitem__(self, _: object) -> PackageName:
        return self  # a generic type in an annotation

    def __iter__(self) -> Any:
        """Raise: by `__getitem__` alone a loop over it would not end."""
        raise UnansweredName(f"{self!r} has no elements, iterated at {find_caller()}")

    def _compute(self, other: object) -> PackageName:
        """Stand for a constant that a module computes from a language's own constants."""
        if self._package in _LANGUAGES and _is_module_level():
            return self
        raise UnansweredName(f"{self!r} has no value, computed with at {find_caller()}")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _compute
    __floordiv__ = __rfloordiv__ = __truediv__ = __rtruediv__ = __mod__ = __rmod__ = _compute

    def __instancecheck__(self, value: object) -> bool:
        return False  # nothing here is of a type of the package

    def __subclasscheck__(self, kind: type) -> bool:
        return False

    def __repr__(self) -> str:
        return f"<virtual {self._package}.{self._path}>"


def _is_module_level() -> bool:
    """Return whether a module or class body is calling, rather than a function that runs."""
    return sys._getframe(2).f_code.co_flags & 0x2 == 0  # CO_NEWLOCALS: a function's code


class PackageModule(RefusingModule):
    """A module whose unknown names are PackageNames."""

    name_class = PackageName

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if not has_stand_in(full_name := f"{self.__name__}.{name}"):
            RECORD.count_import(full_name)
        return found


class PackageFinder:
    """Finds the packages, their submodules and their distributions; first on sys.meta_path."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name.partition(".")[0] not in PACKAGES:
            return None
        return ModuleSpec(name, PackageFinder, is_package=True)  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: ModuleSpec) -> ModuleType:
        return PackageModule(spec.name)

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        module.__file__ = "/dev/null"
        if "." not in module.__name__:
            module.__version__ = _find_version(module.__name__)  # type: ignore[attr-defined]

    @staticmethod
    def find_distributions(
        context: importlib.metadata.DistributionFinder.Context | None = None,
    ) -> Iterable[importlib.metadata.Distribution]:
        wanted = None if context is None else context.name
        for name in (*itertools.chain(*PACKAGES.values()), *_LIBRARIES):
            if wanted is not None and _normalize_name(wanted) == _normalize_name(name):
                yield _VirtualDistribution(name)


class _VirtualDistribution(importlib.metadata.Distribution):
    """A distribution that is not installed, at the version that SGLang requires."""

    def __init__(self, name: str) -> None:
        self._name = name

    def read_text(self, filename: str) -> str | None:
        if filename not in ("METADATA", "PKG-INFO"):
            return None
        message = Message()
        message["Metadata-Version"] = "2.1"
        message["Name"] = self._name
        known = _LIBRARIES.get(self._name, "99.0.0")
        message["Version"] = _read_required_versions().get(_normalize_name(self._name), known)
        return message.as_string()

    def locate_file(self, path: Any) -> Any:
        raise UnansweredName(f"{self._name} has no files here, asked for at {find_caller()}")


def _find_version(package: str) -> str:
    versions = _read_required_versions()
    return next((versions[n] for n in PACKAGES[package] if n in versions), "99.0.0")


def _read_required_versions() -> dict[str, str]:
    try:
        requirements: Sequence[str] = importlib.metadata.requires("sglang") or ()
    except importlib.metadata.PackageNotFoundError:
        return {}
    pinned = (
        re.match(r"([\w.-]+)(?:\[[^]]*\])?\s*[=>]=\s*([\w.]+)", requirement)
        for requirement in requirements
    )
    return {_normalize_name(match[1]): match[2] for match in pinned if match}


def _normalize_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def install_packages() -> None:
    """Make the packages importable; modules of theirs that were imported before are dropped.

    They stand beside SGLang. A machine without it has them or not, and a program that asks for
    `cuda` must not find a module that answers nothing.
    """
    spec = importlib.util.find_spec("sglang")
    if spec is None or spec.origin is None:  # none, or a folder that is no package
        return
    for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:
        if not isinstance(sys.modules[name], PackageModule):
            del sys.modules[name]
    sys.meta_path.insert(0, PackageFinder)
    for name in _OPERATOR_NAMESPACES:
        setattr(torch.ops, name, PackageName(name, ""))
    _skip_shapes_of_operators()


def _skip_shapes_of_operators() -> None:
    """Skip the shapes that SGLang registers for a package's operators: nothing traces them."""
    register = torch.library.register_fake

    def register_fake(operator: Any, function: Any = None, /, **options: Any) -> Any:
        if str(operator).partition("::")[0] in _OPERATOR_NAMESPACES:
            return function if function is not None else lambda function: function
        return register(operator, *(() if function is None else (function,)), **options)

    torch.library.register_fake = register_fake
