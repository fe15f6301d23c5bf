"""A checked session on the virtual GPU: its tensors are torch's own of CUDA, in this memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from harness.device import installation
from harness.device.memory import LEDGER
from harness.kernels.check import torch_modes
from harness.kernels.check.declarations import Check
from harness.kernels.check.options import CheckOptions


class VirtualCheck(Check):
    """A session whose launches run on this CPU, under the checks of the CPU's back end."""

    device = "cuda"

    def __init__(self, options: CheckOptions) -> None:
        installation.install()
        super().__init__(options)

    def open(self, stack: contextlib.ExitStack) -> None:
        from harness.kernels.check.cpu_launcher import CpuLauncher

        stack.enter_context(_unlimited_memory())
        stack.enter_context(torch_modes.WriteTrackingMode(self._memory))
        stack.enter_context(
            CpuLauncher(self._memory, self.launches, self._options, trust_loaded_pointers=True)
        )


@contextlib.contextmanager
def _unlimited_memory() -> Iterator[None]:
    """Let tensors be larger than the card: a suite's large ones take no memory until written.

    Hypothesis keeps the tensors of failed examples, which would soon fill a card.
    """
    before, LEDGER.is_limited = LEDGER.is_limited, False
    try:
        yield
    finally:
        LEDGER.is_limited = before
