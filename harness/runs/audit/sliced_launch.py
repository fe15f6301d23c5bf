"""Launches a slice of a kernel on this CPU: the addresses that depend on some lines."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any

import torch

from harness.checking import IntegerOverflow, OutOfBounds, UncheckableKernel, Violation
from harness.runs.audit.findings import BEYOND_MEMORY, LaunchArgument, TrialLaunch
from harness.runs.audit.kernel_case import KernelCase
from harness.runs.audit.probe_memory import make_tensor
from harness.runs.audit.trial_launches import OVERFLOWS, PASSES, make_call_arguments
from harness.sanitizer.check.cpu_launcher import CpuLauncher
from harness.sanitizer.check.launch_log import LaunchLog
from harness.sanitizer.check.options import CheckOptions
from harness.sanitizer.check.tracked_memory import MemoryTracker
from harness.sanitizer.cpu.arithmetic import Arithmetic
from harness.sanitizer.ir.graph import FileLine, KernelGraph
from harness.sanitizer.ir.kernel_slice import slice_graph


class SlicedCpuLauncher(CpuLauncher):
    """A launcher that runs a slice of the kernel and reports overflows in some lines only.

    `case` is the audit's reading of the kernel. A launch of those types runs its graph, though
    Triton would compile a 1 into it. `on_compiled` is called when the kernel can run.
    """

    def __init__(
        self,
        lines: Collection[FileLine],
        all_accesses: bool,
        case: KernelCase | None = None,
        on_compiled: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(MemoryTracker(), LaunchLog(), CheckOptions(Arithmetic.CLOSE))
        self._on_compiled = on_compiled
        self.watched_lines = frozenset(lines)
        self._case, self._is_case_launch = case, False
        self._slice_lines = None if all_accesses else self.watched_lines
        self.graph_variant = "slice" if all_accesses else f"slice {sorted(lines)}"

    def bind_call(self, binder: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        bound = super().bind_call(binder, args, options)
        kinds = tuple(each.kind for each in self._case.parameters) if self._case else ()
        self._is_case_launch = len(kinds) == len(bound.types) and all(
            kind == read or (kind == "constexpr" and constant == (int, 1) and read[0] in "iu")
            for kind, constant, read in zip(bound.types, bound.constants, kinds, strict=False)
        )
        if not self._is_case_launch:
            return bound
        constants = tuple(
            constant if kind == "constexpr" else None
            for constant, kind in zip(bound.constants, kinds, strict=True)
        )
        return replace(bound, types=kinds, constants=constants, key=(kinds, constants))

    def make_program(self, kernel: Any, binder: Any, bound: Any) -> Any:
        program = super().make_program(kernel, binder, bound)
        if self._on_compiled is not None:
            self._on_compiled()
        return program

    def specialize_call(self, kernel: Any, binder: Any, bound: Any) -> Any:
        return bound if self._is_case_launch else super().specialize_call(kernel, binder, bound)

    def build_graph(self, kernel: Any, bound: Any) -> KernelGraph:
        read = self._case if self._is_case_launch else None
        graph = super().build_graph(kernel, bound) if read is None else read.graph
        return slice_graph(graph, self._slice_lines)

    def __enter__(self) -> SlicedCpuLauncher:
        super().__enter__()
        return self

    def run_only(self, name: str, programs: Iterable[tuple[int, ...]]) -> None:
        self._launches.run_only(name, programs)


def run_program(
    kernel: Any,
    launch: TrialLaunch,
    lines: Collection[FileLine],
    all_accesses: bool = False,
    tensor_factory: Callable[[LaunchArgument], torch.Tensor] = make_tensor,
    case: KernelCase | None = None,
    on_compiled: Callable[[], None] | None = None,
    programs: Iterable[tuple[int, ...]] = (),
) -> str:
    """Run one program of a launch, or several, and describe the end.

    The slice has the accesses that the lines lead to; with `all_accesses` it has every access.
    """
    try:
        with SlicedCpuLauncher(lines, all_accesses, case, on_compiled) as session:
            session.run_only(kernel.fn.__name__, programs or [launch.program])
            kernel[launch.grid](**make_call_arguments(launch, tensor_factory))
    except IntegerOverflow:
        return OVERFLOWS
    except (OutOfBounds, OverflowError):  # OverflowError: a stride that 64 bits do not hold
        return BEYOND_MEMORY
    except Violation as error:
        return error.headline
    except UncheckableKernel as error:
        return f"cannot follow it: {error}"
    except Exception as error:
        return f"cannot launch it: {type(error).__name__}: {error}"
    return PASSES
