"""Checked sessions in which CUDA C++ kernels run as well, on the virtual GPU.

    with session.check_cuda_kernels() as check:
        store_cache(keys, values, key_cache, value_cache, slots)

Access rules, uninitialized memory and the log of launches are those of Triton's kernels. Under
`unfix exec --cuda-kernels` every session on the virtual GPU checks them, a test suite's as well.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from harness.sanitizer import plugins
from harness.sanitizer.check import session
from harness.sanitizer.check.declarations import Check
from harness.sanitizer.check.launch_log import KernelLaunch, LaunchLog
from harness.sanitizer.check.tracked_memory import MemoryTracker, ProgramId, TrackedStorage
from harness.sanitizer.cuda.host_calls import CALLS, HostCall
from harness.sanitizer.ptx.executor import PtxModule
from harness.sanitizer.ptx.launch import Allocation, CudaLaunch, ExecutorChecks
from harness.sanitizer.violations.exceptions import OutOfBounds, UncheckableKernel, Violation


@contextlib.contextmanager
def check_cuda_kernels(exact: bool = False) -> Iterator[Check]:
    """Open a session on the virtual GPU that checks the launches of CUDA modules, too."""
    with session.checked("virtual", exact) as check:
        for plugin in plugins.list_installed():
            plugin.build_cuda_kernels()
        with check_launches(check):
            yield check


@contextlib.contextmanager
def check_launches(check: Check) -> Iterator[None]:
    """Run the launches of CUDA modules under the checks and the declarations of a session."""
    before, CALLS.runner = CALLS.runner, CheckedRunner(check)
    try:
        yield
    finally:
        CALLS.runner = before


class CheckedRunner:
    """Runs launches under the checks and the declarations of a session.

    A violation ends its launch, whatever it is of: bounds are checked always.
    """

    def __init__(self, check: Check) -> None:
        self._memory: MemoryTracker = check.memory
        self._launches: LaunchLog = check.launches
        self._options = check.options

    def run(self, module: PtxModule, launch: CudaLaunch, call: HostCall) -> None:
        name = launch.name.partition("<")[0]
        logged = KernelLaunch(name, launch.grid, dict(call.tensors), call.name, call.file)
        if self._launches.get_chosen_programs(logged) is not None:
            raise ValueError(f"{name} is a CUDA kernel, which runs all its blocks: no `run_only`")
        checks = ExecutorChecks(
            overflow="overflow" in self._options.checks,
            uninitialized="uninitialized" in self._options.checks,
            races="races" in self._options.checks and not self._launches.ignores_races,
        )
        self._launches.begin_launch(logged, self._memory)
        try:
            allocations = tuple(
                _add_declarations(
                    allocation, self._memory.find_storage(call.tensors[allocation.name])
                )
                for allocation in launch.allocations
            )

            def find_allocation(address: int) -> Allocation | None:
                """Find memory that host code allocated itself, which a later call may get."""
                found = launch.find_allocation(address)
                storage = self._memory.find_living(address)
                return None if found is None else _add_declarations(found, storage)

            declared = replace(launch, allocations=allocations, find_allocation=find_allocation)
            for found in module.run(declared, checks):
                raise found
        except Violation as error:
            self._launches.add_violations([error], self._options.max_reports)
            raise
        except UncheckableKernel as error:
            logged.refusal = str(error)
            self._launches.errors.append(error)
            raise
        finally:
            self._launches.end_launch(logged)

    def check_copy(self, target: int, source: int | None, size: int) -> None:
        """Check both ends of a copy against the session's storages, and mark what is written."""
        for address, verb in ((source, "reads"), (target, "writes")):
            storage = None if address is None else self._memory.find_living(address)
            if storage is not None and address is not None and address + size > storage.end:
                violation = OutOfBounds(
                    f"cudaMemcpyAsync {verb} {size} bytes of {storage.name} from its byte "
                    f"{address - storage.start} on, and it has {storage.size}"
                )
                self._launches.add_violations([violation], self._options.max_reports)
                raise violation
        storage = self._memory.find_living(target)
        if storage is not None and storage.uninitialized is not None:
            first = target - storage.start
            storage.uninitialized[first : first + size] = 0


def _add_declarations(allocation: Allocation, storage: TrackedStorage | None) -> Allocation:
    """Add what a session knows of a storage to an allocation in it."""
    if storage is None:
        return allocation
    uninitialized = 0
    if storage.uninitialized is not None:
        uninitialized = storage.uninitialized.data_ptr() + allocation.base - storage.start
    return replace(
        allocation,
        uninitialized=uninitialized,
        allowed_reads=_make_mask("read", storage, allocation),
        allowed_writes=_make_mask("write", storage, allocation),
    )


def _make_mask(
    access: str, storage: TrackedStorage, allocation: Allocation
) -> Callable[[ProgramId], Any] | None:
    """Return what gives the mask of an allocation's bytes that a block may access."""
    rules = [rule for rule in storage.access_rules if rule.get_rule(access) is not None]
    if not rules:
        return None
    first = allocation.base - storage.start

    def compute_mask(block: ProgramId) -> Any:
        masks = [rule.get_allowed_bytes(access, block, storage) for rule in rules]
        allowed = np.ones(allocation.size, dtype=np.uint8)
        for mask in masks:
            if mask is not None:
                allowed &= mask[first : first + allocation.size]
        return allowed

    return compute_mask
