"""The device that suites run on: "cpu" through Triton's interpreter, or "cuda" compiled."""

from __future__ import annotations

import importlib.util
import os
import sys

from harness.errors import UnfixError

_VARIABLE = "UNFIX_DEVICE"  # inherited by the processes of a parallel run


def get() -> str:
    return os.environ.get(_VARIABLE, "cpu")


def choose(wanted: str) -> str:
    """Settle the device for this process and those below it, before Triton is imported."""
    if wanted != "cpu":
        there = _has_cuda()
        if wanted == "cuda" and not there:
            raise UnfixError("this machine has no CUDA device: the suites run with --device cpu")
        wanted = "cuda" if there else "cpu"
    interpreted = wanted == "cpu"
    set_before = os.environ.get("TRITON_INTERPRET", "0") == "1"
    if "triton" in sys.modules and set_before != interpreted:
        raise UnfixError(
            f"Triton is imported already, {'interpreting' if set_before else 'compiling'}: "
            f"set TRITON_INTERPRET={int(interpreted)} before anything imports it"
        )
    os.environ["TRITON_INTERPRET"] = str(int(interpreted))
    os.environ[_VARIABLE] = wanted
    return wanted


def _has_cuda() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())
