"""A checked session: what a suite holds while it drives SGLang's code.

with checking.checked() as check:
    launch_something(torch.empty(8, device=check.device))
    check.written(out)
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch

from harness.checking import modes
from harness.checking.launches import ArgumentFence, ArgumentRule, Launches
from harness.checking.memory import Fence, Index, Memory, as_bytes
from harness.checking.violations import Unwritten

Rule = Callable[[int, int, int], Index]

_ACTIVE = threading.Lock()


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

    def opened(self, stack: contextlib.ExitStack) -> None:
        from harness.checking.launching import Session

        stack.enter_context(modes.HereOnly(self._memory))
        stack.enter_context(modes.Writes(self._memory))
        stack.enter_context(Session(self._memory, self.launches, self._exact))


@contextlib.contextmanager
def checked(device: str | None = None, exact: bool = False) -> Any:
    """A session on this device, or on the one that the run was asked for.

    `exact`: on a CPU, products of float32 are exact where a GPU would take tf32. Else they are
    refused, since nothing says what they come to.
    """
    from harness.guards import device as chosen

    where = device or chosen.get()
    check = Check(exact) if where == "cpu" else _compiled()
    if not _ACTIVE.acquire(blocking=False):
        raise RuntimeError("a checked session is open already: they do not nest")
    try:
        with contextlib.ExitStack() as stack:
            check.opened(stack)
            yield check
        if check.launches.refused:  # and the code under test went on as if nothing were
            raise check.launches.refused[0]
    finally:
        _ACTIVE.release()


def make_ready() -> None:
    """What a session on this device needs to be loaded, so that forks find it there."""
    from harness.guards import device as chosen

    if chosen.get() == "cpu":
        from harness.checking import launching

        launching.make_ready()


@contextlib.contextmanager
def unwatched() -> Any:
    """Triton's kernels run on this CPU, their accesses held against their tensors.

    Nothing of torch is watched, and products of float32 are exact: for code that is to be run
    rather than checked, on a machine where nothing else runs its kernels.
    """
    from harness.checking.launching import Session

    with Session(Memory(), Launches(), exact=True, trusting=True):
        yield


def _compiled() -> Check:
    from harness.checking.compiled import CompiledCheck

    return CompiledCheck()


def _by_program(rule: Rule | None) -> Any:
    return None if rule is None else lambda program: rule(*program)
