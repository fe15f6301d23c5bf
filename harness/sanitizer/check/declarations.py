"""The declarations of a suite about the kernels that it has launched under check.

Example: each program of `fill_rows` may write its own row of a 4x8 tensor, and must fill it.

with checking.checked() as check:
    rows = torch.empty((4, 8), device=check.device)
    check.allow(rows, write=lambda x, y, z: x)
    fill_rows[(4,)](rows)
    check.assert_written(rows)

A rule gets a program's three ids and returns an index of the tensor (`rows[x]` here): an integer, a
slice, a tuple, `...` for all elements or None for none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from harness.sanitizer.check import torch_modes
from harness.sanitizer.check.launch_log import ArgumentAccessRule, ArgumentRule, LaunchLog
from harness.sanitizer.check.options import DEFAULT_OPTIONS, CheckOptions
from harness.sanitizer.check.tracked_memory import (
    AccessRule,
    Index,
    MemoryTracker,
    view_shadow_bytes,
)
from harness.sanitizer.violations.exceptions import UninitializedMemory

IndexRule = Callable[[int, int, int], Index]


class Check:
    """An open session: its access rules, and its launches so far (`launches`)."""

    device = "cpu"

    def __init__(
        self, options: CheckOptions = DEFAULT_OPTIONS, memory: MemoryTracker | None = None
    ) -> None:
        self.launches = LaunchLog()
        self.options = options
        self.memory = memory or MemoryTracker()

    def allow(
        self, tensor: torch.Tensor, *, write: IndexRule | None = None, read: IndexRule | None = None
    ) -> None:
        """Allow each program to write and read certain elements of a tensor.

        No rule (None) allows all elements. Elements outside the tensor are not affected.
        """
        self.memory.track_storage(tensor, "a tensor with an access rule").access_rules.append(
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
        """Do the same as `allow` for a kernel's argument, if the program itself makes the tensor.

        The rule gets the launch in front of the program's ids (`launch.arguments["count"]`), and
        applies to every later launch of the kernel.
        """
        self.launches.add_argument_rule(ArgumentAccessRule(kernel, argument, write, read))

    def mark_uninitialized(self, tensor: torch.Tensor) -> None:
        """Declare the tensor uninitialized: no element may be read before it is written."""
        torch_modes.fill_with_poison(tensor)
        self.memory.track_storage(tensor, "an uninitialized tensor").mark_tensor_uninitialized(
            tensor
        )

    def assert_written(self, tensor: torch.Tensor, index: Index = ...) -> None:
        """Raise UninitializedMemory unless every element, or every one of `index`, was written.

        The tensor was made by `torch.empty` in this session, or given to `mark_uninitialized`.
        """
        if not tensor.numel():
            return
        storage = self.memory.find_storage(tensor)
        if storage is None or storage.uninitialized is None:
            raise ValueError(
                "this tensor was not uninitialized in this session: call mark_uninitialized"
            )
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
        """Run these programs alone in every launch of a kernel; a GPU runs the whole grid."""
        self.launches.run_only(kernel, programs)

    def register_tensor(self, tensor: torch.Tensor, name: str) -> None:
        """Allow accesses to a tensor whose address kernels load from memory, and name it."""
        self.memory.track_storage(tensor, name)

    @contextlib.contextmanager
    def ignore_races(self) -> Iterator[None]:
        """Report no race between programs meanwhile; a launch with one runs again one by one.

        Example: while a server captures its graphs, all requests are the same dummy, whose state
        has one slot. Nobody uses what is written there.
        """
        self.launches.ignores_races = True
        try:
            yield
        finally:
            self.launches.ignores_races = False

    def raise_first_error(self) -> None:
        """Raise the first violation or refusal, if there is one, with the others as its notes."""
        for other in self.launches.errors[1:]:
            self.launches.errors[0].add_note(f"and {other}")
        if self.launches.errors:
            raise self.launches.errors[0]  # a name for it would be a cycle through this frame

    def note_errors(self, error: BaseException) -> None:
        """Add what was reported before to an error that ends the session in its place."""
        known = "".join(getattr(error, "__notes__", ()))
        for other in self.launches.errors:
            if other is not error and str(other) not in known:
                error.add_note(f"a check reported before: {other}")

    def discard_errors(self) -> None:
        """Discard the errors so far, which were expected; the session would raise the first."""
        self.launches.errors.clear()

    def close(self) -> None:
        """Drop all references to tensors.

        An error keeps the session alive: its traceback holds frames, and a frame holds its
        function, whose closure may hold the session.
        """
        self.launches.release_tensors()
        self.memory.clear()

    def open(self, stack: contextlib.ExitStack) -> None:
        from harness.sanitizer.check.cpu_launcher import CpuLauncher

        stack.enter_context(torch_modes.CpuDeviceMode(self.memory))
        stack.enter_context(torch_modes.WriteTrackingMode(self.memory))
        stack.enter_context(CpuLauncher(self.memory, self.launches, self.options))


def _unpack_program(rule: IndexRule | None) -> Any:
    return None if rule is None else lambda program: rule(*program)
