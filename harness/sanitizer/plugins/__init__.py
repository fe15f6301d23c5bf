"""What the sanitizer knows of single packages: a folder `for_PACKAGE` for each.

A plug-in is used in processes whose Python has its package. Its folder has a `PLUGIN`, whose
functions import what they need when they are called. Example: `for_sglang` gives the virtual device
stand-ins for SGLang's CUDA binaries; where SGLang is not installed, none of it is loaded.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.core.after_import import AfterImport

_PREFIX = "for_"
# All packages for which there is a plug-in.
PACKAGES = tuple(folder.name.removeprefix(_PREFIX) for folder in pkgutil.iter_modules(__path__))


def _do_nothing() -> None:
    """Stand for a function that a plug-in does not need."""


@dataclass(frozen=True, slots=True)
class CollectiveClass:
    """A class whose methods are collectives of NCCL.

    Of each: the names of its tensors in order, and the positions of those that it writes.
    """

    module: str
    name: str
    methods: Mapping[str, tuple[tuple[str, ...], tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class SanitizerPlugin:
    """The additions of one package."""

    # Namespaces of torch.ops whose kernels no other check sees: on a GPU they run in guard zones.
    operator_namespaces: tuple[str, ...] = ()
    # C++ namespaces that a report leaves out of a kernel's name.
    kernel_namespaces: tuple[str, ...] = ()
    # Variables that name a folder of built kernels, and what that is called in a checked toolkit.
    build_folders: Mapping[str, str] = field(default_factory=dict)
    collectives: tuple[CollectiveClass, ...] = ()

    # Called once the virtual device is there: registers stand-ins, replaces what needs a GPU.
    install_on_device: Callable[[], None] = _do_nothing
    # Has the package's own CUDA kernels built and run on this CPU, in place of their stand-ins.
    build_cuda_kernels: Callable[[], None] = _do_nothing
    # Gives the operators that have shapes alone in a dry run, by name.
    find_shapes: Callable[[], Mapping[str, Callable[..., Any]]] = dict

    # Gives the functions that have the modules checked which a program builds on a GPU.
    find_loader_hooks: Callable[[], Mapping[str, AfterImport]] = dict
    # Describes what the process works on, for a report; '' if that is not known.
    describe_work: Callable[[], str] = str


@functools.cache
def load_plugin(package: str) -> SanitizerPlugin:
    plugin: SanitizerPlugin = importlib.import_module(f"{__name__}.{_PREFIX}{package}").PLUGIN
    return plugin


def list_all() -> list[SanitizerPlugin]:
    """List all plug-ins, for what holds in other processes as well."""
    return [load_plugin(package) for package in PACKAGES]


def list_installed() -> list[SanitizerPlugin]:
    """List the plug-ins whose packages this Python can import."""
    return [load_plugin(package) for package in PACKAGES if _is_installed(package)]


def _is_installed(package: str) -> bool:
    """Return whether a package can be imported.

    Our own finders are not asked: one would prepare what a program may never import.
    """
    if package in sys.modules:
        return True
    finders = [finder for finder in sys.meta_path if not _is_ours(finder)]
    specs = [finder.find_spec(package, None) for finder in finders if hasattr(finder, "find_spec")]
    # A folder without an `__init__.py`, such as a clone of the package's repository, has no loader.
    return any(spec is not None and spec.loader is not None for spec in specs)


def _is_ours(finder: Any) -> bool:
    return str(getattr(finder, "__module__", "")).startswith("harness.")
