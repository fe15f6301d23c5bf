"""Kernels under check on a GPU: Triton's with checks compiled in, others between guard zones.

Between zones fences are held by comparison, as the union over the grid; what nobody wrote is told
by the poison's bits. `only` is for the CPU: here the whole grid runs.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.jit import JITFunction

from harness.checking import lines, modes, on_gpu
from harness.checking.check import Check
from harness.checking.fenced import Lists
from harness.checking.launches import Launch, whole_grid
from harness.checking.memory import Index
from harness.checking.violations import CannotFollow, LostDevice, Violation
from harness.checking.zones import Guarded, moved
from harness.compiled.born import BORN, POISON
from harness.compiled.known import KNOWN
from harness.compiled.launching import REPORTS, Launcher
from harness.patching import kernels as patching

_OWN = ("sgl_kernel", "sglang")  # operators whose kernels are SGLang's and not PyTorch's


class CompiledCheck(Check):
    device = "cuda"

    def __init__(self, checks: tuple[str, ...]) -> None:
        super().__init__()
        self._checks = checks
        self.unguarded: set[str] = set()  # arguments too large for a copy with zones
        self.unchecked: set[str] = set()  # Triton's kernels that ran once as they are

    def opened(self, stack: contextlib.ExitStack) -> None:
        stack.enter_context(modes.Writes(self._memory))
        stack.enter_context(_Operators(self))
        stack.enter_context(self._jit_launches())

    def poison(self, tensor: torch.Tensor) -> None:
        modes.poison(tensor)
        BORN.meet(tensor)

    def written(self, tensor: torch.Tensor, index: Index = ...) -> None:
        """By value: no answer has the poison's bits. Of one-byte types nothing can be said."""
        size = tensor.element_size()
        if not tensor.numel():
            return
        if size == 1:
            raise CannotFollow(f"whether {tensor.dtype} was written: every byte is a value")
        bits = tensor.contiguous().view(torch.uint8).view(*tensor.shape, size)
        empty = (bits == POISON).all(-1).cpu()
        chosen = torch.zeros(tensor.shape, dtype=torch.bool)
        chosen[index] = True
        self._refuse_unwritten(chosen & empty, chosen)

    def knows(self, tensor: torch.Tensor, name: str) -> None:
        KNOWN.meet(tensor, name)

    @contextlib.contextmanager
    def _jit_launches(self) -> Any:
        torch.cuda.synchronize()
        if any(True for _ in REPORTS.told()):  # of a session that ended by another error
            REPORTS.forget()
        launcher = Launcher(self._checks, loosens=True)
        launcher.start()
        launcher.take_inductors()

        def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
            def call(values: dict[str, Any]) -> Any:
                return checked(kernel, grid=grid, warmup=warmup, **values, **extra)

            names = inspect.signature(kernel.fn).parameters
            extra = {name: value for name, value in options.items() if name not in names}
            own = {name: value for name, value in options.items() if name in names}
            bound = inspect.signature(kernel.fn).bind(*args, **own)
            bound.apply_defaults()
            given = dict(bound.arguments)
            if warmup or torch.cuda.is_current_stream_capturing():
                return call(given)
            sides = grid(given) if callable(grid) else grid
            launch = Launch(kernel.fn.__name__, whole_grid(sides), given)
            lines.tell_all(kernel)
            return self._launched(launch, call, launcher, kernel)

        checked = patching.running(JITFunction, run)
        try:
            yield
            self.settled()  # what graphs that were replayed put down
        finally:
            patching.running(JITFunction, checked)
            launcher.stop()

    def _launched(
        self,
        launch: Launch,
        call: Callable[[dict[str, Any]], Any],
        launcher: Launcher,
        kernel: Any,
    ) -> Any:
        """A Triton kernel: its checks are compiled in, where they can be."""
        fenced = self._fenced(launch)
        if launcher.refuses(kernel, fenced):
            return self.guarded(launch, call)
        for name, value in launch.arguments.items():
            if isinstance(value, torch.Tensor):
                self._memory.storage_of(value, name)
        self.launches.starts(launch, self._memory)
        launcher.fences = Lists(launch, self._memory)
        try:
            result = self._waited(launch, lambda: call(launch.arguments))
            self.settled()
        except CannotFollow as error:
            self.launches.refused.append(error)
            raise
        finally:
            launcher.fences = None
            self.launches.ends(launch)
        if launcher.refuses(kernel, fenced):  # which it found out by compiling it
            self.unchecked.add(launch.kernel)
        return result

    def _fenced(self, launch: Launch) -> bool:
        """Whether what its programs may touch was said, of an argument or of a tensor."""
        if self.launches.fences_of(launch):
            return True
        known = (
            self._memory.known(value)
            for value in launch.arguments.values()
            if isinstance(value, torch.Tensor)
        )
        return any(storage is not None and storage.fences for storage in known)

    def settled(self) -> None:
        """Wait for the device, and raise what kernels have put down."""
        torch.cuda.synchronize()
        before = len(self.launches.refused)
        told = (on_gpu.violation(*one, self._memory) for one in REPORTS.told())
        self.launches.refused += [one for one in told if one is not None]
        if self.launches.refused[before:]:
            REPORTS.forget()
            raise self.launches.refused[before]

    def guarded(self, launch: Launch, call: Callable[[dict[str, Any]], Any]) -> Any:
        """One launch on copies; its arguments hold the result afterwards, unless it misbehaved."""
        try:
            return self._guarded(launch, call)
        except (Violation, CannotFollow) as error:
            self.launches.refused.append(error)
            raise

    def _guarded(self, launch: Launch, call: Callable[[dict[str, Any]], Any]) -> Any:
        self.launches.append(launch)
        fences = self.launches.fences_of(launch)
        held = [
            (storage, fence)
            for fence in fences
            if (storage := self._memory.storage_of(fence.tensor)) is not None
        ]
        zones = Guarded()

        def copy(tensor: torch.Tensor, name: str) -> torch.Tensor:
            if tensor.device.type != "cuda":
                return tensor
            storage = self._memory.storage_of(tensor, name)
            held.extend(
                (storage, fence) for fence in storage.fences if (storage, fence) not in held
            )
            mine = any(storage is other for other, _ in held)
            return zones.copy_of(tensor, name, keep=mine)

        values = {
            name: moved(value, lambda tensor, name=name: copy(tensor, name))  # type: ignore[misc]
            for name, value in launch.arguments.items()
        }
        result = self._waited(launch, lambda: call(values))
        self.settled()
        zones.check(launch.kernel)
        programs = itertools.product(*(range(side) for side in launch.grid))
        every = list(programs) if held and launch.size < 1 << 20 else []
        if held and not every:
            raise CannotFollow(f"{launch}: too many programs to hold against a fence")
        for storage, fence in held:
            zones.check_fence(launch.kernel, fence, storage, every)  # type: ignore[arg-type]
        zones.take_back()
        self.unguarded.update(zones.unguarded)
        return result

    @staticmethod
    def _waited(launch: Launch, call: Callable[[], Any]) -> Any:
        try:
            result = call()
            torch.cuda.synchronize()
        except RuntimeError as error:
            if "CUDA error" not in str(error):
                raise
            raise LostDevice(f"{launch}: {str(error).splitlines()[0]}; {shapes(launch)}") from error
        return result


def shapes(launch: Launch) -> str:
    """What the launch was given, in a line: no example can be shrunk once the device is lost."""
    words = []
    for name, value in launch.arguments.items():
        if isinstance(value, torch.Tensor):
            value = f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
        words.append(f"{name} {value}")
    return ", ".join(words)


class _Operators(TorchDispatchMode):  # type: ignore[misc]
    """SGLang's own compiled operators get zones as its Triton kernels do."""

    def __init__(self, check: CompiledCheck) -> None:
        super().__init__()
        self._check = check

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        aliased = any(returned.alias_info is not None for returned in func._schema.returns)
        if func.namespace not in _OWN or aliased:
            return func(*args, **kwargs)
        names = [argument.name for argument in func._schema.arguments]
        launch = Launch(func.name(), (1, 1, 1), {**dict(zip(names, args, strict=False)), **kwargs})
        return self._check.guarded(launch, lambda values: func(**values))
