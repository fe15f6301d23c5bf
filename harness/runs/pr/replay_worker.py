"""Lists the kernels that a change touches, and compares their answers, in a Python with Triton.

The request is a JSON object on the input; each answer is a JSON object on a line. Each kernel runs
in a fork with a limit on processor time, since a launch may take too long or end its process.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from harness.core import child_process, preloading, processes
from harness.runs.audit.kernel_discovery import SourceKernel
from harness.runs.audit.release_kernels import ReleaseKernels
from harness.runs.pr import kernel_replay, launch_programs
from harness.runs.pr.kernel_replay import LaunchComparison
from harness.sanitizer.check import launch_capture
from harness.sanitizer.check.launch_capture import CapturedLaunch
from harness.sanitizer.check.launcher_state import load_launcher_state
from harness.store.pr.part_results import KernelAnswer, KernelChange

KERNEL_SECONDS = 60.0  # of processor time, for all launches of a kernel
STOP_SECONDS = 20.0  # no further launch begins after that
_WORSE = (KernelAnswer.DIFFERENT, KernelAnswer.REPORTED)
MAX_DRAWN_FROM = 3  # captured launches that others are drawn around


class ReplayRequest(msgspec.Struct):
    """What the worker is to do: list the changed kernels, or compare them too."""

    locations: list[str]  # of the base and of the head
    source_digests: list[str]
    modules: list[str]  # whose text changed
    captured: str = ""  # the folder of launches; '' to list alone


@dataclass(frozen=True)
class KernelPair:
    """A changed kernel, and the base's kernel of its name if there is one."""

    earlier: SourceKernel | None
    later: SourceKernel

    @property
    def name(self) -> str:
        return f"{self.later.module}:{self.later.name}"

    @property
    def earlier_name(self) -> str:
        return f"{self.earlier.module}:{self.earlier.name}" if self.earlier else ""

    @property
    def earlier_lines(self) -> tuple[int, int]:
        node = self.earlier.node if self.earlier else None
        return (node.lineno, node.end_lineno or node.lineno) if node else (1, 0)


def main() -> None:
    sys.setrecursionlimit(20_000)
    warnings.simplefilter("ignore")
    processes.die_with_parent(os.getppid())
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=ReplayRequest)
    answers = os.dup(1)  # Triton and its libraries print to 1, which becomes the log
    os.dup2(2, 1)
    load_launcher_state()
    gc.disable()
    base, head = (
        ReleaseKernels(Path(location), digest)
        for location, digest in zip(request.locations, request.source_digests, strict=True)
    )
    pairs = list(iterate_changed_kernels(base, head, set(request.modules)))
    gc.freeze()
    gc.enable()
    preloading.raise_gc_thresholds()
    for pair in pairs:
        change = make_change(pair)
        if request.captured and pair.earlier is not None:
            work = partial(_compare_kernel, pair, base, head, change, Path(request.captured))
            found = child_process.call_in_fork(work, cpu_seconds=KERNEL_SECONDS)
            if found is None:
                change.why = "its launches took too long, or ended their process"
            else:
                change = msgspec.convert(found, KernelChange)
        line = {"earlier": pair.earlier_name, "change": msgspec.to_builtins(change)}
        line |= {"lines": pair.earlier_lines}
        os.write(answers, json.dumps(line).encode() + b"\n")
    os.write(answers, b'{"end": true}\n')
    os._exit(0)  # an orderly exit would run what the release's statements have registered


def iterate_changed_kernels(
    base: ReleaseKernels, head: ReleaseKernels, modules: set[str]
) -> Iterator[KernelPair]:
    """Iterate the kernels that are launched and changed, each with the earlier one of its name."""
    digests = dict(zip(map(id, head.kernels), head.compute_digests(), strict=True))
    for kernel in head.list_changed_since(base):
        _, whole = digests[id(kernel)]
        # A kernel that Triton cannot load has no digest: it counts if its module changed.
        if kernel.is_helper or (not whole and kernel.module not in modules):
            continue
        same = base.find_by_name(kernel.name)
        own = [one for one in same if one.module == kernel.module]
        earlier = own[0] if own else same[0] if len(same) == 1 else None
        yield KernelPair(earlier, kernel)


def make_change(pair: KernelPair) -> KernelChange:
    path = f"{pair.later.module.replace('.', '/')}.py"
    why = "" if pair.earlier else "the base has no kernel of this name"
    return KernelChange(pair.name, path, pair.later.node.lineno, KernelAnswer.NOT_COMPARED, why=why)


def _compare_kernel(
    pair: KernelPair,
    base: ReleaseKernels,
    head: ReleaseKernels,
    change: KernelChange,
    folder: Path,
) -> Any:
    """Compare all captured launches of a kernel, the smallest first (in a fork)."""
    assert pair.earlier is not None
    launches = launch_capture.list_captured(folder, pair.earlier_name)
    if not launches:
        large = launch_capture.was_too_large(folder, pair.earlier_name)
        change.why = (
            f"each launch of it has more than {launch_capture.MAX_BYTES >> 20} MiB of memory"
            if large
            else "no guard that is run here launches it"
        )
        return msgspec.to_builtins(change)
    try:
        earlier = base.release.load_kernel(pair.earlier.module, pair.earlier.name)
        later = head.release.load_kernel(pair.later.module, pair.later.name)
    except Exception as error:  # its statements may raise anything where its packages are missing
        change.why = f"it cannot be read without an import: {error}"
        return msgspec.to_builtins(change)
    compare = partial(kernel_replay.compare_launch, earlier, later)
    order = list(KernelAnswer)
    started, counts = time.process_time(), dict.fromkeys(KernelAnswer, 0)
    for launch in launches:
        if time.process_time() - started > STOP_SECONDS:
            break
        why = kernel_replay.describe_parameter_change(later, launch)
        found = LaunchComparison(KernelAnswer.NOT_COMPARED, why) if why else compare(launch)
        counts[found.answer] += 1
        is_first = not change.launches and found.answer is not KernelAnswer.NOT_COMPARED
        change.launches += found.answer is not KernelAnswer.NOT_COMPARED
        change.differing += found.answer in _WORSE
        if is_first or order.index(found.answer) < order.index(change.answer):
            change.answer, change.why = found.answer, found.why
            is_equal = found.answer is KernelAnswer.SAME
            change.smallest = [] if is_equal else kernel_replay.describe_launch(launch)
            if found.answer in _WORSE:
                change.test = launch_programs.write_test(launch, compare)
        elif not change.launches:
            change.why = found.why
    if change.answer in (KernelAnswer.SAME, KernelAnswer.ROUNDING):
        _compare_draws(compare, launches[:MAX_DRAWN_FROM], change, started)
    return msgspec.to_builtins(change)


def _compare_draws(
    compare: Callable[[CapturedLaunch], LaunchComparison],
    launches: list[CapturedLaunch],
    change: KernelChange,
    started: float,
) -> None:
    """Compare launches around the captured ones, until one differs: these may miss its branch."""
    for drawn in (drawn for launch in launches for drawn in kernel_replay.iterate_draws(launch)):
        if time.process_time() - started > STOP_SECONDS:
            return
        found = compare(drawn)
        if found.answer is KernelAnswer.NOT_COMPARED:
            continue
        change.drawn += 1
        if found.answer in _WORSE:
            change.answer, change.why, change.differing = found.answer, found.why, 1
            change.smallest = kernel_replay.describe_launch(drawn)
            change.test = launch_programs.write_test(drawn, compare)
            return


if __name__ == "__main__":
    main()
