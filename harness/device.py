"""The device that suites run on: "cpu", kernels compiled for it under check, or "cuda"."""

from __future__ import annotations

import importlib.util
import os

from harness.errors import UnfixError

_VARIABLE = "UNFIX_DEVICE"  # inherited by the processes of a parallel run


def get() -> str:
    return os.environ.get(_VARIABLE, "cpu")


def choose(wanted: str) -> str:
    """Settle the device for this process and those below it."""
    if wanted != "cpu":
        there = _has_cuda()
        if wanted == "cuda" and not there:
            raise UnfixError("this machine has no CUDA device: the suites run with --device cpu")
        wanted = "cuda" if there else "cpu"
    os.environ[_VARIABLE] = wanted
    return wanted


def _has_cuda() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())
