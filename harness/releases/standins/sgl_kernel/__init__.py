"""Stands in for sgl_kernel, SGLang's CUDA binaries, which attention backends import by name."""

from collections.abc import Callable
from typing import Any

import torch
from _refusing import stand_in

stand_in(__name__)

_register_fake = torch.library.register_fake


def _register_fake_of_what_is_there(operator: Any, *function: Any, **options: Any) -> Any:
    """An operator that is absent is never called, and torch need not know its shapes."""
    if str(operator).startswith("sgl_kernel::"):
        name = operator.removeprefix("sgl_kernel::").removesuffix(".default")
        if not hasattr(torch.ops.sgl_kernel, name):
            return function[0] if function else _as_it_is
    return _register_fake(operator, *function, **options)


def _as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


torch.library.register_fake = _register_fake_of_what_is_there
