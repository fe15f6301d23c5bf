"""What a suite declares while it drives SGLang's code under check, and what was launched."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import torch

from harness.checking import modes
from harness.checking.launches import ArgumentFence, ArgumentRule, Launches
from harness.checking.memory import Fence, Index, Memory, as_bytes
from harness.checking.violations import Unwritten

Rule = Callable[[int, int, int], Index]


class Check:
    """The declarations of a suite, and what has been launched so far."""

    device = "cpu"

    def __init__(self, exact: bool = False) -> None:
        self.launches = Launches()
        self._exact = exact
        self._memory = Memory()

    def fence(
        self, tensor: torch.Tensor, *, write: Rule | None = None, read: Rule | None = None
    ) -> None:
        """Which index of the tensor a program may write and read; None allows everything."""
        self._memory.storage_of(tensor, "a fenced tensor").fences.append(
            Fence(tensor, _by_program(write), _by_program(read))
        )

    def fence_argument(
        self,
        kernel: str,
        argument: str,
        *,
        write: ArgumentRule | None = None,
        read: ArgumentRule | None = None,
    ) -> None:
        """The same, for an argument that SGLang makes itself: the rule gets the launch first."""
        self.launches.fence(ArgumentFence(kernel, argument, write, read))

    def poison(self, tensor: torch.Tensor) -> None:
        """Nobody has written this tensor yet."""
        modes.poison(tensor)
        self._memory.storage_of(tensor, "a poisoned tensor").poisoned(tensor)

    def written(self, tensor: torch.Tensor, index: Index = ...) -> None:
        """Every element (of that index) has been written since the tensor was made empty."""
        if not tensor.numel():
            return
        storage = self._memory.known(tensor)
        if storage is None or storage.unwritten is None:
            raise ValueError("this tensor was not made empty in this session: poison it first")
        with torch._C._DisableTorchDispatch():
            empty = as_bytes(storage.unwritten, tensor).any(-1)
            chosen = torch.zeros(tensor.shape, dtype=torch.bool)
            chosen[index] = True
            self._refuse_unwritten(chosen & empty, chosen)

    @staticmethod
    def _refuse_unwritten(empty: torch.Tensor, chosen: torch.Tensor) -> None:
        missing = empty.nonzero().tolist()
        if missing:
            first = ", ".join(str(place) for place in missing[:4])
            raise Unwritten(
                f"{len(missing)} of {int(chosen.sum())} elements were never written: index {first}"
                + (" …" if len(missing) > 4 else "")
            )

    def only(self, kernel: str, programs: Iterable[Iterable[int]]) -> None:
        """Run just these programs of every launch of this kernel."""
        self.launches.only(kernel, programs)

    def knows(self, tensor: torch.Tensor, name: str) -> None:
        """A tensor that kernels reach by an address they load."""
        self._memory.storage_of(tensor, name)

    def forgive(self) -> None:
        """What was refused so far was meant to be: without this the session ends with it."""
        self.launches.refused.clear()

    def closed(self) -> None:
        """Whoever still has the session has no tensor by it.

        An error knows where it was raised: a frame that is cleared keeps its function, which may
        have closed over the session.
        """
        self.launches.forget()
        self._memory.forget()

    def opened(self, stack: contextlib.ExitStack) -> None:
        from harness.checking.launching import Session

        stack.enter_context(modes.HereOnly(self._memory))
        stack.enter_context(modes.Writes(self._memory))
        stack.enter_context(Session(self._memory, self.launches, self._exact))


def _by_program(rule: Rule | None) -> Any:
    return None if rule is None else lambda program: rule(*program)
