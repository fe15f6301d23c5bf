"""A checked session on the virtual GPU: its tensors are torch's own of CUDA, in this memory."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from harness.sanitizer.check import torch_modes
from harness.sanitizer.check.declarations import Check
from harness.sanitizer.check.options import CheckOptions
from harness.sanitizer.check.tracked_memory import MemoryTracker, TrackedStorage
from harness.sanitizer.device import dispatch, graph_pool, host_memory, installation
from harness.sanitizer.device.dispatch import OperatorPlan
from harness.sanitizer.device.memory import LEDGER

# Entered by each session: what runs and checks the launches of other kernels than Triton's.
SESSION_EXTENSIONS: list[Callable[[Check], contextlib.AbstractContextManager[None]]] = []


class VirtualCheck(Check):
    """A session whose launches run on this CPU, under the checks of the CPU's back end."""

    device = "cuda"

    def __init__(self, options: CheckOptions) -> None:
        installation.install_device()
        super().__init__(options, DeviceMemoryTracker())

    def open(self, stack: contextlib.ExitStack) -> None:
        from harness.sanitizer.check.cpu_launcher import CpuLauncher

        # A suite's large tensors take no memory until written, and Hypothesis keeps those of failed
        # examples, which would soon fill a card.
        stack.enter_context(LEDGER.lift_limit())
        stack.enter_context(self._track_other_threads())
        stack.enter_context(torch_modes.WriteTrackingMode(self.memory))
        stack.enter_context(CpuLauncher(self.memory, self.launches, self.options))
        for extend in SESSION_EXTENSIONS:
            stack.enter_context(extend(self))

    @contextlib.contextmanager
    def _track_other_threads(self) -> Iterator[None]:
        """Track what operators write in threads that load weights: a mode of torch has one."""
        own = threading.get_ident()

        def mark_written(
            plan: OperatorPlan, args: tuple[Any, ...], options: dict[str, Any], result: Any
        ) -> None:
            if threading.get_ident() == own:
                return
            for place, name in plan.outputs:
                value = args[place] if place < len(args) else options.get(name)
                for tensor in value if isinstance(value, (list, tuple)) else (value,):
                    if isinstance(tensor, torch.Tensor):
                        self.memory.mark_written(tensor)

        dispatch.OBSERVERS.append(mark_written)
        try:
            yield
        finally:
            dispatch.OBSERVERS.remove(mark_written)


class DeviceMemoryTracker(MemoryTracker):
    """The memory that a kernel of the device may reach: the device's own, and pinned memory."""

    is_of_device = True
    _kept: Sequence[torch.UntypedStorage] = ()

    def iterate_living(self) -> Iterator[TrackedStorage]:
        """Yield all living storages, also those that no launch has taken as an argument.

        A replay has what its graph's tensors had, although they are freed.
        """
        pool = graph_pool.get_replayed()
        self._kept = pool.list_freed_storages() if pool is not None else ()
        known = (*LEDGER.list_storages(), *host_memory.list_pinned_storages(), *self._kept)
        for storage in known:
            self.track(storage, "memory of the device")
        return super().iterate_living()
