"""Lists the kernels of a release, in a process that has Triton.

The request is an `InventoryRequest` as JSON, the answer one line: a `KernelInventory`.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib.util import decode_source
from pathlib import Path

import msgspec

from harness.core import processes
from harness.runs.audit.kernel_discovery import SourceKernel
from harness.runs.audit.release_files import PACKAGE, iterate_sources
from harness.runs.audit.release_kernels import ReleaseKernels
from harness.runs.kernels import obstacles
from harness.runs.kernels.cuda_sources import (
    CudaKernel,
    CudaLoader,
    CudaSources,
    find_loaders,
    read_cuda_sources,
)
from harness.runs.kernels.name_graph import Definition, NameGraph
from harness.runs.kernels.values import InventoryRequest, KernelInventory, KernelKind, ListedKernel
from harness.sanitizer.triton import line_tracing, recorded_reach
from harness.sanitizer.triton.recorded_reach import KernelReach, shorten_to_package


class InventoryBuilder:
    """Joins the kernels of a release with the recorded launches and the names of its code."""

    def __init__(self, request: InventoryRequest, report: Callable[[str], None]) -> None:
        self.request, self.report = request, report
        location = Path(request.location)
        self.source = ReleaseKernels(location, request.source_digest)
        self.texts = {name: decode_source(text) for name, text in iterate_sources(location)}
        self.graph = NameGraph((_get_module(name), text) for name, text in self.texts.items())
        self.cuda = CudaSources(read_cuda_sources(location))
        reached = recorded_reach.read_reach(Path(request.launches))
        own = [reach for reach in reached if reach.release == request.release]
        # Launches of another release count by the kernel's name where this one has none; its line
        # numbers do not count.
        self.recorded_on = sorted({reach.release for reach in own or reached})
        self.reached: dict[str, list[KernelReach]] = defaultdict(list)
        for reach in own or reached:
            self.reached[reach.kernel].append(reach)
        # A helper's lines count for it, whoever launched the kernel that calls it.
        self.lines: dict[str, set[int]] = defaultdict(set)
        for reach in own:
            for file, numbers in reach.lines.items():
                self.lines[file] |= numbers

    def build(self) -> KernelInventory:
        self.report(
            f"{len(self.source.kernels)} Triton kernels found; looking for what launches them"
        )
        kernels = [self._list_triton_kernel(kernel) for kernel in self.source.kernels]
        self._reach_helpers(kernels)
        self.report("looking for what launches the CUDA kernels")
        kernels += self._list_cuda_kernels()
        is_recording_cuda = any(
            kernel.is_reached for kernel in kernels if kernel.kind is KernelKind.CUDA
        )
        for kernel in kernels:
            kernel.obstacle = obstacles.find_obstacle(kernel, is_recording_cuda)
        kernels.sort(key=lambda kernel: (kernel.file, kernel.line))
        return KernelInventory(self.request.release, kernels, self.recorded_on)

    def _list_triton_kernel(self, kernel: SourceKernel) -> ListedKernel:
        file = self._get_file(kernel.module)
        body = set(range(kernel.node.lineno, (kernel.node.end_lineno or 0) + 1))
        starts, sites = [], []
        for launch in kernel.launches:
            path = shorten_to_package(launch.file.replace("!", "/"), PACKAGE)
            sites.append(f"{path}:{launch.line} {launch.function}")
            definition = self.graph.find_definition(_get_module(path), launch.line)
            starts += [definition] if definition is not None else []
        listed = ListedKernel(
            KernelKind.TRITON,
            kernel.name,
            file,
            kernel.node.lineno,
            sorted(kernel.callers) if kernel.is_helper else [],
            sites,
        )
        self._add_callers(listed, starts)
        self._add_reach(listed, self.reached[f"{kernel.module}:{kernel.name}"])
        ran = self.lines.get(file, set()) & body
        if ran or listed.reached_by:
            text = self.texts[file]
            counted = set(_list_lines(text, frozenset(body))) & body
            reached = set(_list_lines(text, frozenset(ran))) & counted
            listed.line_count = len(counted) if ran else 0
            listed.reached_lines = len(reached)
            listed.unreached_lines = sorted(counted - reached) if ran else []
        return listed

    def _reach_helpers(self, kernels: list[ListedKernel]) -> None:
        """A helper whose lines ran was reached by whoever launched the kernels that call it."""
        by_name: dict[str, list[ListedKernel]] = defaultdict(list)
        for kernel in kernels:
            by_name[kernel.name].append(kernel)
        for kernel in kernels:
            if kernel.helper_of and kernel.reached_lines and not kernel.reached_by:
                callers = self._list_launched_callers(kernel, by_name)
                kernel.reached_by = sorted({by for caller in callers for by in caller.reached_by})

    def _list_launched_callers(
        self, helper: ListedKernel, by_name: dict[str, list[ListedKernel]]
    ) -> list[ListedKernel]:
        seen: set[str] = set()
        pending, found = list(helper.helper_of), []
        while pending:
            name = pending.pop()
            if name not in seen:
                seen.add(name)
                found += by_name[name]
                pending += [caller for kernel in by_name[name] for caller in kernel.helper_of]
        return found

    def _list_cuda_kernels(self) -> Iterator[ListedKernel]:
        loaders: dict[str, list[CudaLoader]] = defaultdict(list)
        for file, text in self.texts.items():
            for loader in find_loaders(file, text):
                for built in self.cuda.list_built_files(loader):
                    loaders[built].append(loader)
        for kernel in self.cuda.list_kernels():
            yield self._list_cuda_kernel(kernel, loaders[kernel.file])

    def _list_cuda_kernel(self, kernel: CudaKernel, loaders: list[CudaLoader]) -> ListedKernel:
        sites = [f"{loader.file}:{loader.line} {loader.function}" for loader in loaders]
        starts = [
            self.graph.find_definition(_get_module(loader.file), loader.line) for loader in loaders
        ]
        listed = ListedKernel(
            KernelKind.CUDA, kernel.name, kernel.file, kernel.line, launch_sites=sites
        )
        self._add_callers(listed, [start for start in starts if start is not None])
        self._add_reach(listed, self.reached[f"{kernel.file}:{kernel.name}"])
        return listed

    def _add_callers(self, listed: ListedKernel, starts: list[Definition]) -> None:
        callers = self.graph.find_callers(starts)
        own = [start.key for start in starts if start.module.startswith("sglang.srt.")]
        listed.entries = callers.entries or own
        listed.conditions = callers.conditions

    def _add_reach(self, listed: ListedKernel, reaches: list[KernelReach]) -> None:
        listed.reached_by = sorted({by for reach in reaches for by in reach.by})
        listed.refusals = sorted({reason for reach in reaches for reason in reach.refusals})

    def _get_file(self, module: str) -> str:
        stem = module.replace(".", "/")
        return f"{stem}.py" if f"{stem}.py" in self.texts else f"{stem}/__init__.py"


def _list_lines(text: str, lines: frozenset[int]) -> Iterator[int]:
    for _, numbers in line_tracing.find_executed_lines(text, lines):
        yield from numbers


def _get_module(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def main() -> None:
    sys.setrecursionlimit(20_000)
    processes.die_with_parent(os.getppid())
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=InventoryRequest)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a module prints becomes the log

    def answer(line: bytes) -> None:
        answers.write(line + b"\n")
        answers.flush()

    builder = InventoryBuilder(request, lambda step: answer(step.encode()))
    answer(msgspec.json.encode(builder.build()))
    answers.close()


if __name__ == "__main__":
    main()
