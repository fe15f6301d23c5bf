"""Puts the virtual device into this process: for good, in every thread and every fork."""

from __future__ import annotations

import os

from harness.core.errors import UnfixError
from harness.sanitizer import plugins
from harness.sanitizer.device.cards import CARD_VARIABLE, get_card

_installed = False


def is_installed() -> bool:
    return _installed


def install_device(card: str | None = None) -> None:
    """Make torch find CUDA devices of this card; a second call changes nothing."""
    global _installed
    if card is not None:
        os.environ[CARD_VARIABLE] = card
    get_card()  # an unknown name fails here
    if _installed:
        return
    # Nothing is compiled for a GPU here, and nothing would be gained by compiling for this CPU.
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    import torch

    if torch.version.cuda is not None:
        raise UnfixError(
            f"torch {torch.__version__} was built for CUDA, and the virtual GPU needs one that is "
            "built for CPUs (torch's own index has it under `cpu`)"
        )
    from harness.sanitizer.device import (
        dispatch,
        host_copies,
        host_memory,
        memory,
        process_group,
        special_operators,
        streams,
        torch_cuda,
        triton_driver,
    )

    torch_cuda.replace_torch_cuda()
    streams.WAIT_OBSERVERS.append(host_copies.deliver_copies)
    dispatch.register_operators(special_operators.KERNELS, special_operators.AUTOGRAD_KERNELS)
    memory.install_storages()
    host_memory.install_host_memory()
    process_group.install_process_group()
    triton_driver.install_driver()
    for plugin in plugins.list_installed():
        plugin.install_on_device()
    _installed = True
