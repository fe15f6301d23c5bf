"""What the sanitizer knows of single packages: a folder `for_PACKAGE` for each.

A plug-in is used in processes whose Python has its package. Its folder has a `PLUGIN`, whose
functions import what they need when they are called. Example: `for_sglang` gives the virtual device
stand-ins for SGLang's CUDA binaries; where SGLang is not installed, none of it is loaded.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_PREFIX = "for_"


def _do_nothing() -> None:
    """Stand for a function that a plug-in does not need."""


def _find_no_shapes() -> Mapping[str, Callable[..., Any]]:
    return {}


@dataclass(frozen=True, slots=True)
class SanitizerPlugin:
    """The additions of one package."""

    # Called once the virtual device is there: registers stand-ins, replaces what needs a GPU.
    install_on_device: Callable[[], None] = _do_nothing
    # Has the package's own CUDA kernels built and run on this CPU, in place of their stand-ins.
    build_cuda_kernels: Callable[[], None] = _do_nothing
    # Gives the operators that have shapes alone in a dry run, by name.
    find_shapes: Callable[[], Mapping[str, Callable[..., Any]]] = _find_no_shapes


@functools.cache
def list_installed() -> tuple[SanitizerPlugin, ...]:
    """List the plug-ins whose packages this Python can import."""
    return tuple(
        importlib.import_module(f"{__name__}.{folder.name}").PLUGIN
        for folder in pkgutil.iter_modules(__path__)
        if importlib.util.find_spec(folder.name.removeprefix(_PREFIX)) is not None
    )
