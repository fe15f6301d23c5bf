"""A checked session on the virtual GPU: its tensors are torch's own of CUDA, in this memory."""

from __future__ import annotations

import contextlib

from harness.device import installation
from harness.kernels.check import torch_modes
from harness.kernels.check.declarations import Check


class VirtualCheck(Check):
    """A session whose launches run on this CPU, under the checks of the CPU's back end."""

    device = "cuda"

    def __init__(self, exact: bool = False) -> None:
        installation.install()
        super().__init__(exact)

    def open(self, stack: contextlib.ExitStack) -> None:
        from harness.kernels.check.cpu_launcher import CpuLauncher

        stack.enter_context(torch_modes.WriteTrackingMode(self._memory))
        stack.enter_context(
            CpuLauncher(self._memory, self.launches, self._exact, trust_loaded_pointers=True)
        )
