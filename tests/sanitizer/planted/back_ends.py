"""The back ends, each a function that launches a planted fault and returns what is reported."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cpu_runs import replace_gpu_parts, run_checked, to_violations
from fault_table import LANES, FaultLaunch, make_memory
from instrumented_kernels import launch_with_checks
from ptx_kernels import launch_text, pack_parameters, read_compiled

from harness import checking
from harness.sanitizer.check.device_rules import DeviceRuleLists
from harness.sanitizer.check.launch_log import KernelLaunch
from harness.sanitizer.check.tracked_memory import AccessRule, MemoryTracker
from harness.sanitizer.gpu import ALL_CHECKS, POISON
from harness.sanitizer.gpu.empty_memory import EMPTY_STORAGES
from harness.sanitizer.gpu.pointer_arguments import flatten_arguments
from harness.sanitizer.violations.kinds import ViolationKind
from harness.sanitizer.violations.targets import Target

_, TEXT = read_compiled("planted", Path(__file__).parent)
EMPTY = slice(6, 8)


class PlantedLaunch:
    """The memory and the arguments of one launch."""

    def __init__(self, fault: FaultLaunch, is_right: bool, device: str = "cpu") -> None:
        self.fault, self.is_right, self.memory = fault, is_right, make_memory(device)
        self.blocks = fault.right_blocks if is_right else 2
        chosen = fault.right or fault.arguments if is_right else fault.arguments
        self.arguments = tuple(self.memory[one] if isinstance(one, str) else one for one in chosen)
        self.tensors = {name: self.memory[name] for name in chosen if isinstance(name, str)}
        for place, number in {} if is_right else fault.index.items():
            self.memory["index"][place] = number

        self.empty = None if is_right or not fault.empty else self.memory[fault.empty]
        self.ruled = self.memory[fault.rule] if fault.rule else None
        self.ruled_verb = "read" if fault.rule == "values" else "write"

    def allow_own(self, x: int, *_: int) -> slice:
        return slice(LANES * x, LANES * (x + 1))

    def poison_empty(self) -> None:
        if self.empty is not None:
            self.empty[EMPTY].view(torch.uint8).fill_(POISON)
            EMPTY_STORAGES.register(self.empty)


def run_in_session(fault: FaultLaunch, is_right: bool, device: str = "cpu") -> list[Any]:
    options: dict[str, Any] = {"all_checks": True} if device == "cuda" else {}
    launch = PlantedLaunch(fault, is_right, device)
    with checking.checked(device, **options) as session:
        if launch.empty is not None:
            values = launch.empty.tolist()
            session.mark_uninitialized(launch.empty)
            for written in (slice(EMPTY.start), slice(EMPTY.stop, None)):
                launch.empty[written] = torch.tensor(values[written], device=device)
        if launch.ruled is not None:
            session.allow(launch.ruled, **{launch.ruled_verb: launch.allow_own})
        with contextlib.suppress(checking.Violation):
            # A card's kernel has assertions only if it is launched for debugging, and then also
            # Triton's own, of overflow.
            is_debugging = device == "cuda" and fault.kind is ViolationKind.ASSERTION
            options = {"debug": True} if is_debugging else {}
            fault.kernel[(launch.blocks,)](*launch.arguments, **options)
            if device == "cuda":
                session.raise_reported()
        found = list(session.launches.errors)
        session.discard_errors()
    return found


def run_on_card(fault: FaultLaunch, is_right: bool) -> list[Any]:
    return run_in_session(fault, is_right, "cuda")


def run_checks_in_triton_ir(fault: FaultLaunch, is_right: bool) -> list[Any]:
    """Run the kernel with the GPU's checks on this CPU."""
    launch, tracker = PlantedLaunch(fault, is_right), MemoryTracker()
    launch.poison_empty()
    rules, grid = None, (launch.blocks,)
    if launch.ruled is not None:
        allowed = {"read": None, "write": None, launch.ruled_verb: lambda id: launch.allow_own(*id)}
        tracker.track_storage(launch.ruled).access_rules.append(AccessRule(launch.ruled, **allowed))
        lists = DeviceRuleLists(KernelLaunch(fault.name, (*grid, 1, 1), {}), tracker, "cpu")
        rules = lists(flatten_arguments(fault.kernel, launch.arguments, {})[0])
    with replace_gpu_parts():
        result = run_checked(fault.kernel, launch.arguments, {}, grid, rules, ALL_CHECKS)
    return to_violations(*result, tracker, fault.kernel, launch.arguments, {})


def execute_ptx(fault: FaultLaunch, is_right: bool) -> list[Any]:
    launch = PlantedLaunch(fault, is_right)
    fields: dict[str, dict[str, Any]] = {}
    if launch.empty is not None:
        uninitialized = np.zeros(launch.empty.nbytes, np.uint8)
        uninitialized[4 * EMPTY.start : 4 * EMPTY.stop] = 1
        fields[fault.empty] = {"uninitialized": int(uninitialized.ctypes.data)}
    if launch.ruled is not None:
        size = launch.ruled.numel()

        def mask_own(block: tuple[int, int, int]) -> Any:
            allowed = np.zeros(size, bool)
            allowed[launch.allow_own(*block)] = True
            return allowed.repeat(4).view(np.uint8)

        fields[fault.rule] = {f"allowed_{launch.ruled_verb}s": mask_own}
    return launch_text(*_pack_launch(launch), entry=fault.name, fields=fields)


def run_checks_in_ptx(fault: FaultLaunch, is_right: bool) -> list[Any]:
    """Run the kernel with the checks that a GPU's kernel gets on this CPU."""
    launch = PlantedLaunch(fault, is_right)
    launch.poison_empty()
    empty = (fault.empty,) if launch.empty is not None else ()
    return launch_with_checks(
        *_pack_launch(launch), entry=fault.name, checks=ALL_CHECKS, empty=empty
    )


def _pack_launch(launch: PlantedLaunch) -> tuple[Any, ...]:
    tensors = {name: tensor.numpy() for name, tensor in launch.tensors.items()}
    values = (one if isinstance(one, int) else one.numpy() for one in launch.arguments)
    return TEXT, pack_parameters(*values), tensors, (launch.blocks, 1, 1), (LANES, 1, 1)


BackEnd = Callable[[FaultLaunch, bool], list[Any]]
BACK_ENDS: dict[str, tuple[Target, BackEnd]] = {
    "compiled for this CPU": (Target.TRITON_CPU, run_in_session),
    "checks in Triton's IR": (Target.TRITON_GPU, run_checks_in_triton_ir),
    "executor of PTX": (Target.CUDA_CPU, execute_ptx),
    "checks in PTX": (Target.CUDA_GPU, run_checks_in_ptx),
    "a card": (Target.TRITON_GPU, run_on_card),
}
