"""Kernels under check on a GPU: Triton's with checks compiled in, others between guard zones.

A kernel between guard zones has its access rules checked after the launch, by comparison and for
all programs together; uninitialized elements are recognized by the poison's bits. The whole grid
always runs: `run_only` is for the CPU.
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

from harness.sanitizer import plugins
from harness.sanitizer.check import gpu_facts, torch_modes
from harness.sanitizer.check.declarations import Check
from harness.sanitizer.check.device_rules import MAX_PROGRAMS, DeviceRuleLists
from harness.sanitizer.check.guard_zones import GuardZoneCopies, replace_tensors
from harness.sanitizer.check.launch_log import KernelLaunch, to_full_grid
from harness.sanitizer.check.tracked_memory import Index
from harness.sanitizer.gpu import POISON
from harness.sanitizer.gpu.checked_launches import CheckedLauncher
from harness.sanitizer.gpu.empty_memory import EMPTY_STORAGES
from harness.sanitizer.gpu.process_reports import PROCESS_REPORTS
from harness.sanitizer.gpu.storage_registry import STORAGE_REGISTRY
from harness.sanitizer.triton import jit_kernels, line_tracing
from harness.sanitizer.violations.exceptions import DeviceLost, UncheckableKernel, Violation


class GpuCheck(Check):
    device = "cuda"

    def __init__(self, checks: tuple[str, ...], whole_storages: bool = False) -> None:
        super().__init__()
        self._checks, self._whole_storages = checks, whole_storages
        self.arguments_without_zones: set[str] = set()  # too large for a copy
        self.unchecked_kernels: set[str] = set()  # Triton kernels that ran unchecked

    def open(self, stack: contextlib.ExitStack) -> None:
        stack.enter_context(torch_modes.WriteTrackingMode(self.memory))
        stack.enter_context(_OperatorMode(self))
        stack.enter_context(self._intercept_triton_launches())

    def mark_uninitialized(self, tensor: torch.Tensor) -> None:
        torch_modes.fill_with_poison(tensor)
        EMPTY_STORAGES.register(tensor)

    def assert_written(self, tensor: torch.Tensor, index: Index = ...) -> None:
        """Search for the poison's bits, which no result has. One-byte types cannot be judged."""
        size = tensor.element_size()
        if not tensor.numel():
            return
        if size == 1:
            raise UncheckableKernel(f"whether {tensor.dtype} was written: every byte is a value")
        bits = tensor.contiguous().view(torch.uint8).view(*tensor.shape, size)
        empty = (bits == POISON).all(-1).cpu()
        chosen = torch.zeros(tensor.shape, dtype=torch.bool)
        chosen[index] = True
        self._raise_if_uninitialized(chosen & empty, chosen)

    def register_tensor(self, tensor: torch.Tensor, name: str) -> None:
        STORAGE_REGISTRY.register(tensor, name)

    @contextlib.contextmanager
    def _intercept_triton_launches(self) -> Any:
        torch.cuda.synchronize()
        if list(PROCESS_REPORTS.read_new_reports()):  # left by a session that another error ended
            PROCESS_REPORTS.reset()
        launcher = CheckedLauncher(
            self._checks, symbolic_constants=True, whole_storages=self._whole_storages
        )
        launcher.start()
        launcher.start_inductor()

        def launch_kernel(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
            def call(values: dict[str, Any]) -> Any:
                return run_before(kernel, grid=grid, warmup=warmup, **values, **extra)

            names = inspect.signature(kernel.fn).parameters
            extra = {name: value for name, value in options.items() if name not in names}
            own = {name: value for name, value in options.items() if name in names}
            bound = inspect.signature(kernel.fn).bind(*args, **own)
            bound.apply_defaults()
            arguments = dict(bound.arguments)
            if warmup or torch.cuda.is_current_stream_capturing():
                return call(arguments)
            sides = grid(arguments) if callable(grid) else grid
            launch = KernelLaunch(kernel.fn.__name__, to_full_grid(sides), arguments)
            line_tracing.trace_kernel(kernel)
            return self._launch_with_checks(launch, call, launcher, kernel, extra)

        run_before = jit_kernels.replace_run(JITFunction, launch_kernel)
        try:
            yield
            self.raise_reported()  # reports of replayed CUDA graphs
        finally:
            jit_kernels.replace_run(JITFunction, run_before)
            launcher.stop()

    def _launch_with_checks(
        self,
        launch: KernelLaunch,
        call: Callable[[dict[str, Any]], Any],
        launcher: CheckedLauncher,
        kernel: Any,
        extra: dict[str, Any],
    ) -> Any:
        """Launch a Triton kernel with checks compiled in; if that is refused, between zones."""
        has_rules = self._has_access_rules(launch)
        named = launch.arguments | extra
        if launcher.find_refusal(kernel, (), named, has_rules):
            return self.launch_guarded(launch, call)
        for name, value in launch.arguments.items():
            if isinstance(value, torch.Tensor):
                self.memory.track_storage(value, name)
        self.launches.begin_launch(launch, self.memory)
        launcher.build_rule_table = DeviceRuleLists(launch, self.memory)
        try:
            result = self._call_and_wait(launch, lambda: call(launch.arguments))
            self.raise_reported()
        except UncheckableKernel as error:
            self.launches.errors.append(error)
            raise
        finally:
            launcher.build_rule_table = None
            self.launches.end_launch(launch)
        # The compilation may have found a reason to refuse.
        if launcher.find_refusal(kernel, (), named, has_rules):
            self.unchecked_kernels.add(launch.kernel)
        return result

    def _has_access_rules(self, launch: KernelLaunch) -> bool:
        """Return whether an access rule is about one of the launch's tensors."""
        if self.launches.make_access_rules(launch):
            return True
        storages = (
            self.memory.find_storage(value)
            for value in launch.arguments.values()
            if isinstance(value, torch.Tensor)
        )
        return any(storage is not None and storage.access_rules for storage in storages)

    def raise_reported(self) -> None:
        """Wait for the device, and raise the first violation that kernels have reported."""
        torch.cuda.synchronize()
        before = len(self.launches.errors)
        violations = (
            gpu_facts.violation_from_record(*report, self.memory)
            for report in PROCESS_REPORTS.read_new_reports()
        )
        self.launches.errors += [violation for violation in violations if violation is not None]
        self.launches.errors += [
            UncheckableKernel(f"{kernel}: {count} reports of launches that are no longer known")
            for (kernel, _), count in PROCESS_REPORTS.count_dropped().items()
        ]
        if self.launches.errors[before:]:
            PROCESS_REPORTS.reset()
            raise self.launches.errors[before]

    def launch_guarded(self, launch: KernelLaunch, call: Callable[[dict[str, Any]], Any]) -> Any:
        """Launch on copies; afterwards the arguments hold the result, if nothing was violated."""
        try:
            return self._launch_between_zones(launch, call)
        except (Violation, UncheckableKernel) as error:
            self.launches.errors.append(error)
            raise

    def _launch_between_zones(
        self, launch: KernelLaunch, call: Callable[[dict[str, Any]], Any]
    ) -> Any:
        self.launches.append(launch)
        rules = [
            (self.memory.track_storage(rule.tensor), rule)
            for rule in self.launches.make_access_rules(launch)
        ]
        zones = GuardZoneCopies()

        def copy(tensor: torch.Tensor, name: str) -> torch.Tensor:
            if tensor.device.type != "cuda":
                return tensor
            storage = self.memory.track_storage(tensor, name)
            rules.extend(
                (storage, rule) for rule in storage.access_rules if (storage, rule) not in rules
            )
            has_rule = any(storage is other for other, _ in rules)
            return zones.copy_tensor(tensor, name, keep_original=has_rule)

        values = {
            name: replace_tensors(value, lambda tensor, name=name: copy(tensor, name))  # type: ignore[misc]
            for name, value in launch.arguments.items()
        }
        result = self._call_and_wait(launch, lambda: call(values))
        self.raise_reported()
        zones.check_zones(launch.kernel)
        if rules and launch.program_count >= MAX_PROGRAMS:
            raise UncheckableKernel(f"{launch}: too many programs for an access rule")
        for storage, rule in rules:
            programs: Any = itertools.product(*(range(side) for side in launch.grid))
            zones.check_access_rule(launch.kernel, rule, storage, programs)
        zones.copy_back()
        self.arguments_without_zones.update(zones.names_without_zones)
        return result

    @staticmethod
    def _call_and_wait(launch: KernelLaunch, call: Callable[[], Any]) -> Any:
        try:
            result = call()
            torch.cuda.synchronize()
        except RuntimeError as error:
            if "CUDA error" not in str(error):
                raise
            raise DeviceLost(
                f"{launch}: {str(error).splitlines()[0]}; {describe_arguments(launch)}"
            ) from error
        return result


def describe_arguments(launch: KernelLaunch) -> str:
    """Return a launch's arguments in one line: no example can be shrunk once the device is lost."""
    words = []
    for name, value in launch.arguments.items():
        if isinstance(value, torch.Tensor):
            value = f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
        words.append(f"{name} {value}")
    return ", ".join(words)


class _OperatorMode(TorchDispatchMode):  # type: ignore[misc]
    """Launch the compiled operators of plug-ins' packages between guard zones."""

    def __init__(self, check: GpuCheck) -> None:
        super().__init__()
        self._check = check
        self._namespaces = {
            name for plugin in plugins.list_installed() for name in plugin.operator_namespaces
        }

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        aliased = any(returned.alias_info is not None for returned in func._schema.returns)
        if func.namespace not in self._namespaces or aliased:
            return func(*args, **kwargs)
        names = [argument.name for argument in func._schema.arguments]
        launch = KernelLaunch(
            func.name(), (1, 1, 1), {**dict(zip(names, args, strict=False)), **kwargs}
        )
        return self._check.launch_guarded(launch, lambda values: func(**values))
