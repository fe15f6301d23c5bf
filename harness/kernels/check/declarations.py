"""What a suite declares while it drives SGLang's code under check, and what was launched."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import torch

from harness.kernels.check import torch_modes
from harness.kernels.check.launch_log import ArgumentAccessRule, ArgumentRule, LaunchLog
from harness.kernels.check.tracked_memory import AccessRule, Index, MemoryTracker, view_shadow_bytes
from harness.kernels.check.violations import UninitializedMemory

IndexRule = Callable[[int, int, int], Index]


class Check:
    """The declarations of a suite, and what has been launched so far."""

    device = "cpu"

    def __init__(self, exact: bool = False) -> None:
        self.launches = LaunchLog()
        self._exact = exact
        self._memory = MemoryTracker()

    def allow(
        self, tensor: torch.Tensor, *, write: IndexRule | None = None, read: IndexRule | None = None
    ) -> None:
        """Which index of the tensor a program may write and read; None allows everything."""
        self._memory.track_storage(tensor, "a fenced tensor").access_rules.append(
            AccessRule(tensor, _unpack_program(write), _unpack_program(read))
        )

    def allow_argument(
        self,
        kernel: str,
        argument: str,
        *,
        write: ArgumentRule | None = None,
        read: ArgumentRule | None = None,
    ) -> None:
        """The same, for an argument that SGLang makes itself: the rule gets the launch first."""
        self.launches.add_argument_rule(ArgumentAccessRule(kernel, argument, write, read))

    def mark_uninitialized(self, tensor: torch.Tensor) -> None:
        """Nobody has written this tensor yet."""
        torch_modes.fill_with_poison(tensor)
        self._memory.track_storage(tensor, "a poisoned tensor").mark_tensor_uninitialized(tensor)

    def assert_written(self, tensor: torch.Tensor, index: Index = ...) -> None:
        """Every element (of that index) has been written since the tensor was made empty."""
        if not tensor.numel():
            return
        storage = self._memory.find_storage(tensor)
        if storage is None or storage.uninitialized is None:
            raise ValueError("this tensor was not made empty in this session: poison it first")
        with torch._C._DisableTorchDispatch():
            empty = view_shadow_bytes(storage.uninitialized, tensor).any(-1)
            chosen = torch.zeros(tensor.shape, dtype=torch.bool)
            chosen[index] = True
            self._raise_if_uninitialized(chosen & empty, chosen)

    @staticmethod
    def _raise_if_uninitialized(uninitialized: torch.Tensor, chosen: torch.Tensor) -> None:
        missing = uninitialized.nonzero().tolist()
        if missing:
            first = ", ".join(str(place) for place in missing[:4])
            raise UninitializedMemory(
                f"{len(missing)} of {int(chosen.sum())} elements were never written: index {first}"
                + (" …" if len(missing) > 4 else "")
            )

    def run_only(self, kernel: str, programs: Iterable[Iterable[int]]) -> None:
        """Run just these programs of every launch of this kernel."""
        self.launches.run_only(kernel, programs)

    def register_tensor(self, tensor: torch.Tensor, name: str) -> None:
        """A tensor that kernels reach by an address they load."""
        self._memory.track_storage(tensor, name)

    def discard_errors(self) -> None:
        """What was refused so far was meant to be: without this the session ends with it."""
        self.launches.errors.clear()

    def close(self) -> None:
        """Whoever still has the session has no tensor by it.

        An error knows where it was raised: a frame that is cleared keeps its function, which may
        have closed over the session.
        """
        self.launches.release_tensors()
        self._memory.clear()

    def open(self, stack: contextlib.ExitStack) -> None:
        from harness.kernels.check.cpu_launcher import CpuLauncher

        stack.enter_context(torch_modes.CpuDeviceMode(self._memory))
        stack.enter_context(torch_modes.WriteTrackingMode(self._memory))
        stack.enter_context(CpuLauncher(self._memory, self.launches, self._exact))


def _unpack_program(rule: IndexRule | None) -> Any:
    return None if rule is None else lambda program: rule(*program)
