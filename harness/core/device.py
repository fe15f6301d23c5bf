"""The device that suites run on: "cpu", kernels compiled for it under check, or "cuda".

A process that has used CUDA has no forks that can. So one whose forks are to run tests there never
uses it: what SGLang asks of the GPU as it is imported is answered by what a fork was told.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
from types import SimpleNamespace
from typing import Any

from harness.core.errors import UnfixError

_DEVICE_VARIABLE = "UNFIX_DEVICE"  # inherited by the processes of a parallel run
FORK_TIMEOUT_SECONDS = 60  # seconds in which a fork has to have used the GPU


def get_device() -> str:
    return os.environ.get(_DEVICE_VARIABLE, "cpu")


def choose_device(requested: str) -> str:
    """Settle the device for this process and those below it."""
    if requested != "cpu":
        there = _has_cuda()
        if requested == "cuda" and not there:
            raise UnfixError("this machine has no CUDA device: the suites run with --device cpu")
        requested = "cuda" if there else "cpu"
    os.environ[_DEVICE_VARIABLE] = requested
    return requested


def _has_cuda() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


def defer_cuda_to_forks() -> None:
    """Have this process know the GPUs without using them; its forks ask for themselves."""
    if importlib.util.find_spec("torch") is None:
        return
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # whether there are any, too
    import torch

    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.write(write, json.dumps(_describe_gpus(torch)).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as told:
        text = told.read()
    os.waitpid(pid, 0)
    here, known = os.getpid(), [SimpleNamespace(**one) for one in json.loads(text or "[]")]
    if not known:
        return  # as `choose` will say
    asked: Any = torch.cuda
    properties, current = asked.get_device_properties, asked.current_device
    bound: Any = torch._C
    # What `torch.get_device_module()` asks, and that asks the driver.
    accelerator = bound._get_accelerator

    def get_device_properties(device: Any = None) -> Any:
        if os.getpid() != here:
            return properties(device)
        return known[torch.device("cuda" if device is None else device).index or 0]

    asked.get_device_properties = get_device_properties

    def get_accelerator(*checked: bool) -> Any:
        return accelerator(*checked) if os.getpid() != here else torch.device("cuda")

    asked.current_device = lambda: 0 if os.getpid() == here else current()
    bound._get_accelerator = get_accelerator


def _describe_gpus(torch: Any) -> list[dict[str, Any]]:
    """All that is said of each GPU in plain values."""
    found = []
    for index in range(torch.cuda.device_count()):
        said = torch.cuda.get_device_properties(index)
        named = {name: getattr(said, name) for name in dir(said) if not name.startswith("_")}
        found.append({k: v for k, v in named.items() if isinstance(v, bool | int | float | str)})
    return found


def can_forks_use_device() -> bool:
    """Whether a fork of this process can, which is seen by having one do so."""
    if get_device() == "cpu":
        return True
    pid = os.fork()
    if not pid:
        code = 1
        try:
            import torch

            signal.alarm(FORK_TIMEOUT_SECONDS)
            code = int(torch.ones(1, device="cuda").item() != 1)
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0
