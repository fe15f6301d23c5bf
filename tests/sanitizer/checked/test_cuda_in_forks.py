"""A process whose forks will use a GPU does not initialize CUDA, whatever a release calls."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import torch

from harness.core import device


def test_a_release_that_queries_the_accelerator_leaves_forks_their_gpu() -> None:
    assert _in_a_fork(list_devices) == ["torch.cuda", "the driver was asked"]


def list_devices() -> list[str]:
    def ask_the_driver(*_: bool) -> torch.device:
        raise RuntimeError("the driver was asked")

    torch._C._get_accelerator = ask_the_driver
    device._describe_gpus = lambda _: [{"name": "a GPU"}]
    device.defer_cuda_to_forks()
    return [find_accelerator(), *_in_a_fork(lambda: [find_accelerator()])]


def find_accelerator() -> str:
    torch.get_device_module.cache_clear()
    try:
        return str(torch.get_device_module().__name__)
    except RuntimeError as error:
        return str(error)


def _in_a_fork(ask: Callable[[], list[str]]) -> list[str]:
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.write(write, json.dumps(ask()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, encoding="utf-8") as message:
        text = message.read()
    os.waitpid(pid, 0)
    found: list[str] = json.loads(text or '["it died"]')
    return found
