"""Answers that SGLang's `cache_once` keeps: loaded modules, and what was asked of the device.

`cache_once` has a dictionary in its closure. What a dictionary holds was computed by the code that
ran then, so a live patch empties those that may depend on what it changes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

KERNELS_PACKAGE = "sglang.kernels."
_LOADERS_PACKAGE = "sglang.kernels.ops."  # its functions load modules of CUDA kernels
_VARIABLE = "result_map"  # of `cache_once`
_registered: list[dict[Any, Any] | set[Any]] = []


def register_answers(answers: dict[Any, Any] | set[Any]) -> None:
    """Have a collection of ours emptied, too, when code of SGLang's kernels changes."""
    _registered.append(answers)


def iterate_answer_maps(module: ModuleType) -> Iterator[dict[Any, Any]]:
    """Yield the answers of the functions that a module has by name, also of imported ones."""
    for function in list(vars(module).values()):
        if isinstance(function, FunctionType) and function.__closure__:
            variables = function.__code__.co_freevars
            if _VARIABLE in variables:
                yield function.__closure__[variables.index(_VARIABLE)].cell_contents


def forget_dependent_answers(module: ModuleType) -> None:
    """Empty the answers that may depend on a module's code.

    These are its own; if it belongs to the kernels, those of all loaders, and what is registered.
    """
    found: list[dict[Any, Any] | set[Any]] = list(iterate_answer_maps(module))
    if module.__name__.startswith(KERNELS_PACKAGE):
        for name, other in list(sys.modules.items()):
            if name.startswith(_LOADERS_PACKAGE):
                found += iterate_answer_maps(other)
        found += _registered
    for answers in found:
        answers.clear()
