"""The device that suites run on: "cpu", with checked kernels compiled for it, or "cuda"; or
"virtual", a GPU that `harness.sanitizer.device` plays on the CPU.

Invariant: a process whose forks run tests on a GPU never initializes CUDA, since CUDA cannot
be used in forks of a process that has initialized it. SGLang reads the GPU's properties at import:
a fork reads them beforehand, and this process returns the values that the fork read.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import signal
from types import SimpleNamespace
from typing import Any

from harness.core.child_process import call_in_fork
from harness.core.errors import UnfixError

DEVICE_VARIABLE = "UNFIX_DEVICE"  # inherited by the processes of a parallel run
VIRTUAL = "virtual"
FORK_TIMEOUT_SECONDS = 60  # limit of a fork's first use of the GPU


def get_device() -> str:
    return os.environ.get(DEVICE_VARIABLE, "cpu")


def has_gpu() -> bool:
    """Return whether the run's device is a real GPU, which can be lost, filled and held."""
    return get_device() == "cuda"


def list_kinds() -> frozenset[str]:
    """List the kinds of the run's device, as toggles name them: a virtual GPU is a GPU."""
    return frozenset({"cuda", VIRTUAL} if get_device() == VIRTUAL else {get_device()})


def get_environment(name: str) -> str:
    """Return the device whose release environments a device uses: the virtual one, the CPU's."""
    return "cpu" if name == VIRTUAL else name


def choose_device(requested: str) -> str:
    """Choose the device of this process and its descendants."""
    if requested not in ("cpu", VIRTUAL):
        has_cuda = _has_cuda()
        if requested == "cuda" and not has_cuda:
            raise UnfixError("this machine has no CUDA device: the suites run with --device cpu")
        requested = "cuda" if has_cuda else "cpu"
    os.environ[DEVICE_VARIABLE] = requested
    return requested


def _has_cuda() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


def defer_cuda_to_forks() -> None:
    """Make torch describe the GPUs in this process without initializing CUDA.

    A fork reads their properties first; the forks that run tests later read them from torch.
    """
    if importlib.util.find_spec("torch") is None:
        return
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # `is_available` initializes nothing then
    import torch

    gpus = [
        SimpleNamespace(**gpu)
        for gpu in call_in_fork(functools.partial(_describe_gpus, torch)) or ()
    ]
    if not gpus:
        return  # `choose_device` reports it
    deferring_pid = os.getpid()
    cuda: Any = torch.cuda
    bindings: Any = torch._C
    get_properties, get_current = cuda.get_device_properties, cuda.current_device
    # `torch.get_device_module()` calls it, and it initializes the driver.
    get_torch_accelerator = bindings._get_accelerator

    def get_device_properties(device: Any = None) -> Any:
        if os.getpid() != deferring_pid:
            return get_properties(device)
        return gpus[torch.device("cuda" if device is None else device).index or 0]

    def get_accelerator(*checked: bool) -> Any:
        if os.getpid() != deferring_pid:
            return get_torch_accelerator(*checked)
        return torch.device("cuda")

    cuda.get_device_properties = get_device_properties
    cuda.current_device = lambda: 0 if os.getpid() == deferring_pid else get_current()
    bindings._get_accelerator = get_accelerator


def _describe_gpus(torch: Any) -> list[dict[str, Any]]:
    """Return the properties of each GPU that are plain values."""
    gpus = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        values = {name: getattr(properties, name) for name in dir(properties) if name[0] != "_"}
        gpus.append({k: v for k, v in values.items() if isinstance(v, bool | int | float | str)})
    return gpus


def shares_processes(name: str) -> bool:
    """Return whether tests on a device run many in one process: CUDA starts once in each."""
    return name == "cuda"


def can_forks_use_device() -> bool:
    """Try in a fork whether forks of this process can use the device."""
    return not has_gpu() or call_in_fork(_use_gpu) is True


def _use_gpu() -> bool:
    import torch

    signal.alarm(FORK_TIMEOUT_SECONDS)
    return bool(torch.ones(1, device="cuda").item() == 1)
