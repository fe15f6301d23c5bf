"""A call of a module's host function: its tensors by name, and the launches that it makes.

Python calls `module.store_cache(k, v, …)`; the module's own host code checks its arguments, chooses
a kernel and launches it, and the launch comes back into `HostCalls.launch`. An error there becomes
the error of the call, in place of the one that the host code raises about a failed launch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from harness.sanitizer.cuda import cudart
from harness.sanitizer.cuda.fatbin import read_ptx
from harness.sanitizer.cuda.host_arguments import describe_tensor, iterate_tensors, pack_parameters
from harness.sanitizer.cuda.kernel_lines import KernelLines, remove_places
from harness.sanitizer.cuda.kernel_names import find_plain_name, unmangle_name
from harness.sanitizer.cuda.registers import find_register_refusal
from harness.sanitizer.device.callers import find_caller
from harness.sanitizer.device.memory import LEDGER
from harness.sanitizer.device.record import RECORD
from harness.sanitizer.device.refusals import UnansweredName
from harness.sanitizer.hooks import HOOKS
from harness.sanitizer.ptx.executor import PtxModule, load_module
from harness.sanitizer.ptx.launch import Allocation, CudaLaunch, ExecutorChecks
from harness.sanitizer.triton import recorded_reach

_ILLEGAL_ADDRESS, _LAUNCH_FAILURE = 700, 719  # of cudaError_t
# Called for each launch before it runs: the PTX module and the launch.
LAUNCH_OBSERVERS: list[Callable[[PtxModule, CudaLaunch], None]] = []


@dataclass(slots=True)
class HostCall:
    """A call that is running."""

    name: str
    tensors: dict[str, torch.Tensor]  # by the names of the host function's parameters
    allocations: tuple[Allocation, ...]
    file: str = ""  # the source of the kernel that it launched last
    errors: list[BaseException] = field(default_factory=list)
    launched: set[str] = field(default_factory=set)  # kernels that ran to their end


class LaunchRunner(Protocol):
    """Runs the launches of host calls, and checks their copies."""

    def run(self, module: PtxModule, launch: CudaLaunch, call: HostCall) -> None:
        """Run a launch; raise its violation."""

    def check_copy(self, target: int, source: int | None, size: int) -> None:
        """Check a copy before it is made, or the filling of memory, which has no source."""


class BoundsRunner:
    """For processes without a session: accesses are checked against their tensors alone."""

    def run(self, module: PtxModule, launch: CudaLaunch, call: HostCall) -> None:
        for violation in module.run(launch, _BOUNDS_ALONE):
            raise violation

    def check_copy(self, target: int, source: int | None, size: int) -> None:
        return


_BOUNDS_ALONE = ExecutorChecks(overflow=False, uninitialized=False, races=False)


class HostCalls:
    """The host calls of this process, one stack for each thread, and what runs their launches."""

    def __init__(self) -> None:
        self._local = threading.local()
        # By the address of the fatbin, and the PTX that runs in place of what is in it.
        self._modules: dict[tuple[int, str], list[PtxModule]] = {}
        self._lines: dict[tuple[int, str], KernelLines] = {}
        self._unchanged: set[tuple[int, str]] = set()  # texts with the code that the fatbin has
        self.runner: LaunchRunner = BoundsRunner()
        self.prepare: Callable[[], None] | None = None  # before the first call

    @property
    def _stack(self) -> list[HostCall]:
        if not hasattr(self._local, "stack"):
            self._local.stack = []
        stack: list[HostCall] = self._local.stack
        return stack

    def run(
        self,
        name: str,
        names: tuple[str, ...],
        launched: set[str],
        function: Any,
        args: tuple[Any, ...],
    ) -> Any:
        """Call a host function, adding its kernels to `launched`; raise their first error."""
        if self.prepare is not None:
            prepare, self.prepare = self.prepare, None
            prepare()
        tensors = dict(iterate_tensors(names, args))
        call = HostCall(name, tensors, tuple(map(describe_tensor, tensors, tensors.values())))
        call.launched = launched
        self._stack.append(call)
        RECORD.count_kernel_call(name)
        try:
            result = function(*args)
        except BaseException as error:
            cudart.take_last_error()  # the next call's host code may ask for the last error
            if call.errors:
                raise call.errors[0] from error
            raise
        finally:
            self._stack.pop()
        if call.errors:
            cudart.take_last_error()
            raise call.errors[0]
        return result

    def launch(self, pointer: Any) -> int:
        """Run one launch; the hook of cudart.c."""
        stack, raw = self._stack, pointer.contents
        if not stack:
            UnansweredName("a kernel was launched outside of every call from Python")
            return _LAUNCH_FAILURE
        try:
            entry = raw.entry.decode()
            module = self.find_module(raw.fatbin, entry)
            launch = CudaLaunch(
                entry,
                unmangle_name(entry),
                raw.grid.as_tuple(),
                raw.block.as_tuple(),
                raw.shared_bytes,
                pack_parameters(module.parameter_layout(entry), raw.arguments),
                stack[-1].allocations,
                find_living_allocation,
                raw.cluster.as_tuple(),
                raw.max_shared_bytes,
            )
            code = raw.fatbin, HOOKS.get_device_code()
            lines = self._lines[code]
            HOOKS.count_cuda_launch(lines.select(entry), code in self._unchanged)
            for observe in tuple(LAUNCH_OBSERVERS):
                observe(module, launch)
            stack[-1].file = lines.files.get(entry, "")
            if refusal := find_register_refusal(module, launch):
                raise refusal
            self.runner.run(module, launch, stack[-1])
            stack[-1].launched.add(find_plain_name(launch.name))
            if recorded_reach.is_recording():
                recorded_reach.record_cuda_reach(stack[-1].file, find_plain_name(launch.name))
        except BaseException as error:
            stack[-1].errors.append(error)
            return _ILLEGAL_ADDRESS if isinstance(error, AssertionError) else _LAUNCH_FAILURE
        return 0

    def find_module(self, fatbin: int, entry: str) -> PtxModule:
        """Find the PTX module of a fatbin that defines a kernel."""
        for module in self._read_modules(fatbin):
            if entry in module.entries:
                return module
        raise UnansweredName(f"no PTX of its module defines the kernel {unmangle_name(entry)}")

    def _read_modules(self, fatbin: int) -> list[PtxModule]:
        text = HOOKS.get_device_code()
        if (fatbin, text) not in self._modules:
            own = read_ptx(fatbin)
            texts = [text] if text else own
            self._modules[fatbin, text] = [load_module(text) for text in texts]
            self._lines[fatbin, text] = KernelLines(texts)
            if text and list(map(remove_places, own)) == [remove_places(text)]:
                self._unchanged.add((fatbin, text))
        return self._modules[fatbin, text]

    def find_variable(self, fatbin: int, name: bytes) -> int:
        """Return the address of a module's variable on the device; the hook of cudart.c."""
        return self._read_modules(fatbin)[0].variable_address(name.decode())

    def get_static_shared(self, fatbin: int, entry: bytes) -> int:
        name = entry.decode()
        return self.find_module(fatbin, name).static_shared_bytes(name)

    def get_most_threads(self, fatbin: int, entry: bytes) -> int:
        name = entry.decode()
        return self.find_module(fatbin, name).most_threads(name)

    def check_copy(self, target: int, source: int | None, size: int) -> int:
        """Check what the host code copies; the hook of cudart.c."""
        try:
            self.runner.check_copy(target, source, size)
        except BaseException as error:
            for call in self._stack[-1:]:
                call.errors.append(error)
            return _ILLEGAL_ADDRESS
        return 0

    def report_unanswered(self, name: bytes) -> None:
        """Make a function of CUDA without an answer the error of the running call."""
        stack = self._stack
        where = f" by {stack[-1].name}" if stack else ""
        error = UnansweredName(
            f"the stand-in for libcudart does not answer {name.decode()}, called{where} at "
            f"{find_caller()}: add it to harness/sanitizer/cuda/cudart.c"
        )
        if stack:
            stack[-1].errors.append(error)


CALLS = HostCalls()


def find_living_allocation(address: int) -> Allocation | None:
    """Find the device allocation that contains an address, if one is alive."""
    found = LEDGER.find(address)
    if found is None:
        return None
    base, size = found
    return Allocation(f"an allocation of {size} bytes", base, size)
