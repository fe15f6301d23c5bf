"""Which way SGLang goes on the device: its questions about the platform, its operators' choices.

Each `is_cuda()` of `sglang.srt.utils` is counted by the line that asks, with the answer; each
operator with several implementations by the method that it chose (`SiluAndMul: forward_cuda`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from types import FunctionType, ModuleType
from typing import Any

from harness.sanitizer.device.record import RECORD


def _count_questions(module: ModuleType) -> None:
    """Count the calls of every question without arguments, such as `is_cuda()`."""
    for name, function in list(vars(module).items()):
        if name.startswith("is_") and _takes_nothing(function, module):
            setattr(module, name, _count_question(name, function))


def _takes_nothing(function: Any, module: ModuleType) -> bool:
    plain = inspect.unwrap(function) if callable(function) else None
    if not isinstance(plain, FunctionType) or plain.__module__ != module.__name__:
        return False
    return not inspect.signature(plain).parameters


def _count_question(name: str, function: Callable[[], Any]) -> Callable[[], Any]:
    @functools.wraps(function)
    def ask() -> Any:
        answer = function()
        RECORD.count_branch(f"{name}() is {answer}")
        return answer

    return ask


def _count_choices(class_name: str, method_name: str) -> Callable[[ModuleType], None]:
    """Count what a class's method returns: the bound method that an operator will run."""

    def wrap(module: ModuleType) -> None:
        cls = getattr(module, class_name)
        choose = vars(cls).get(method_name)
        if choose is None:  # a later release chooses in the other class of HOOKS
            return

        @functools.wraps(choose)
        def choose_and_count(self: Any, *args: Any, **options: Any) -> Any:
            chosen = choose(self, *args, **options)
            RECORD.count_choice(f"{type(self).__name__}: {getattr(chosen, '__name__', chosen)}")
            return chosen

        setattr(cls, method_name, choose_and_count)

    return wrap


HOOKS: Mapping[str, Callable[[ModuleType], None]] = {
    "sglang.srt.utils.common": _count_questions,
    "sglang.srt.layers.utils.multi_platform": _count_choices("MultiPlatformOp", "dispatch_forward"),
    "sglang.kernels.fused_op": _count_choices("BaseFusedOp", "_resolve_forward_method"),
}
