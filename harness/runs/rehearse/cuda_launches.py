"""Calls of SGLang's own CUDA C++ at their true size, of which some blocks run under check.

Invariant: each distinct call of a JIT module (export, template arguments, shapes, strides,
alignment, integers, and how much of its tensors' memory is unwritten) runs once in a batch, before
its stand-in, whose results are those that count: what the blocks wrote is undone. SGLang's own host
code chooses the kernel and launches it, and the corners of the grid and a few blocks run, as of
Triton's kernels. What follows a kernel that does not run to its end is launched and not checked.

What is not checked is counted by operator and cause: packages that nothing here builds, a module
whose headers are missing, instructions that the executor refuses. A module that a toggle patches
and that does not load ends the batch.

Example: `store_cache` of 8,192 rows is one launch of 1,024 blocks, of which twelve run.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from harness.core.errors import PatchError, UnfixError
from harness.patching.cuda_modules import (
    find_compiler_error,
    has_compiler_error,
    is_of_patched_module,
)
from harness.releases import cuda_toolkit
from harness.runs.rehearse.restored_memory import restore_values
from harness.runs.rehearse.written_memory import WrittenMemory
from harness.sanitizer.check.tracked_memory import ProgramId
from harness.sanitizer.cuda import cudart
from harness.sanitizer.cuda.host_calls import CALLS, HostCall
from harness.sanitizer.cuda.kernel_names import find_plain_name
from harness.sanitizer.device.cards import get_card
from harness.sanitizer.device.nested_tensors import list_tensors
from harness.sanitizer.device.refusals import UnansweredName
from harness.sanitizer.device.stand_ins import CALL_OBSERVERS, JitBuild
from harness.sanitizer.plugins.for_sglang import jit_loader
from harness.sanitizer.ptx.compiled_kernels import get_runtime
from harness.sanitizer.ptx.executor import PtxModule
from harness.sanitizer.ptx.launch import Allocation, CudaLaunch, ExecutorChecks
from harness.sanitizer.violations.exceptions import UncheckableKernel, Violation
from harness.store.rehearse.values import RehearsedLaunch, UncheckedCause, UncheckedOperator

_REASON_CHARACTERS = 200
_FOLDERS = re.compile(r"(?<![\w.])/(?:[^\s/:()'\"]+/)+")
# What SGLang says of a package of headers that is not there.
_MISSING_HEADERS = re.compile(r"Cannot find (the )?\S+ package|headers not found")


class LaunchRecorder(Protocol):
    """What records launches: the launcher of Triton's kernels."""

    written: WrittenMemory
    phase: str
    is_recording: bool

    def record_launch(
        self, name: str, grid: ProgramId, arguments: dict[str, str]
    ) -> tuple[RehearsedLaunch | None, bool]:
        """Record a launch, or count one that is known; None if nothing is to be recorded."""

    def count_again(self, record: RehearsedLaunch) -> None:
        """Count another launch that is like a recorded one."""

    def add_finding(self, record: RehearsedLaunch | None, violation: Violation) -> None:
        """Add a violation to the findings."""


@dataclass(frozen=True)
class CallObstacle:
    """Why no check runs a call."""

    cause: UncheckedCause
    reason: str = ""  # of a checker or a compiler


@dataclass(frozen=True)
class CudaCall:
    """What a distinct call launched, or why it could not run."""

    records: list[RehearsedLaunch]
    obstacle: CallObstacle | None = None


class CudaCalls:
    """The calls of CUDA operators in a rehearsal: some are checked, and all are counted."""

    def __init__(
        self,
        recorder: LaunchRecorder,
        choose_blocks: Callable[[ProgramId], tuple[ProgramId, ...]],
        describe: Callable[[Any], str],
    ) -> None:
        self._recorder, self._choose_blocks, self._describe = recorder, choose_blocks, describe
        # By name and obstacle; None of those that are checked.
        self.counts: Counter[tuple[str, CallObstacle | None]] = Counter()
        self._calls: dict[Any, CudaCall] = {}
        self._kernels: dict[str, set[str]] = {}  # that an operator has launched
        self._probed: frozenset[str] | None = None
        self._failed: dict[tuple[str, ...], CallObstacle] = {}  # by modules that are not built
        self._stopped = ""  # why the rest of the running call is not checked

    @contextlib.contextmanager
    def observe(self) -> Iterator[None]:
        if _prepared.obstacle is None:
            cudart.choose_card(get_card())
        CALL_OBSERVERS.append(self._observe)
        before, CALLS.runner = CALLS.runner, self
        try:
            yield
        finally:
            CALLS.runner = before
            CALL_OBSERVERS.remove(self._observe)

    @contextlib.contextmanager
    def probe(self, kernels: frozenset[str]) -> Iterator[None]:
        """Check the calls of these kernels alone meanwhile, and count nothing."""
        before = self._calls, self.counts, self._probed
        self._calls, self.counts, self._probed = {}, Counter(), kernels
        try:
            yield
        finally:
            self._calls, self.counts, self._probed = before

    def list_unchecked(self) -> list[UncheckedOperator]:
        unchecked = [
            UncheckedOperator(name, calls, obstacle.reason, obstacle.cause)
            for (name, obstacle), calls in self.counts.items()
            if obstacle is not None
        ]
        return sorted(unchecked, key=lambda one: (one.name, one.cause, one.reason))

    def count_calls(self) -> dict[str, int]:
        """Count all calls by name, those that are checked among them."""
        calls: Counter[str] = Counter()
        for (name, _), count in sorted(self.counts.items(), key=lambda item: item[0][0]):
            calls[name] += count
        return dict(calls)

    def _observe(self, name: str, build: JitBuild | None, args: Any, options: Any) -> None:
        if not self._recorder.is_recording:
            return
        if self._probed is not None and self._probed.isdisjoint(self._kernels.get(name, ())):
            return
        tensors = list_tensors(args, options)
        key = (
            *(self._recorder.phase, name, build, len(args)),
            *map(self._describe, args),
            *((option, self._describe(value)) for option, value in sorted(options.items())),
            self._recorder.written.describe_unwritten(tensors),
        )
        known = self._calls.get(key)
        if known is None:
            known = self._calls[key] = self._check(name, build, args, options)
            self._kernels.setdefault(name, set()).update(one.kernel for one in known.records)
        else:
            for record in known.records:
                self._recorder.count_again(record)
        self.counts[name, known.obstacle] += 1

    # One distinct call

    def _check(self, name: str, build: JitBuild | None, args: Any, options: Any) -> CudaCall:
        self._records: list[RehearsedLaunch] = []
        self._stopped = ""
        if obstacle := self._find_obstacle(build, options):
            return CudaCall([], obstacle)
        assert build is not None
        tensors = list_tensors(args)
        self._shadows = self._recorder.written.find_shadows(tensors)
        with restore_values(tensors):
            try:
                getattr(self._load(name, build), build.export)(*args)
            except _NotBuilt:
                return CudaCall([], self._failed[build.marker])
            except (UncheckableKernel, UnansweredName) as error:  # before a launch
                reason = _shorten_error(error)
                return CudaCall(self._records, CallObstacle(UncheckedCause.REFUSED, reason))
        return CudaCall(self._records)

    def _find_obstacle(self, build: JitBuild | None, options: Any) -> CallObstacle | None:
        """Find why a call cannot run here; None if nothing speaks against it."""
        if build is None:
            return CallObstacle(UncheckedCause.NO_SOURCE)
        if options:
            return CallObstacle(UncheckedCause.KEYWORDS)
        return _prepared.obstacle or self._failed.get(build.marker)

    def _load(self, name: str, build: JitBuild) -> Any:
        """Load a module; raise _NotBuilt if its compiler or its headers are what it lacks here."""
        assert build.load_own is not None
        try:
            return build.load_own()
        except UnfixError:
            raise
        except Exception as error:
            message = str(error)
            if is_of_patched_module(error):
                words = _shorten_text(find_compiler_error(message))
                raise PatchError(f"{name} is not built with its toggles: {words}") from error
            if not has_compiler_error(message) and not _MISSING_HEADERS.search(message):
                raise
            reason = _shorten_text(find_compiler_error(message))
            self._failed[build.marker] = CallObstacle(UncheckedCause.NOT_BUILT, reason)
            raise _NotBuilt from error

    # What a host call's launches come to

    def run(self, module: PtxModule, launch: CudaLaunch, call: HostCall) -> None:
        """Run some blocks of a launch, unless one before it in its call did not run to its end."""
        kernel = f"{_shorten_path(call.file)}:{find_plain_name(launch.name)}"
        described = {name: self._describe(tensor) for name, tensor in call.tensors.items()}
        arguments = {"specialization": launch.name, "block": str(launch.block), **described}
        record, is_new = self._recorder.record_launch(kernel, launch.grid, arguments)
        if record is None:
            return
        self._records.append(record)
        if self._stopped:
            if is_new:
                record.refusal = self._stopped
            return
        chosen = self._choose_blocks(launch.grid)
        checks = ExecutorChecks(uninitialized=self._shadows is not None, races=False)
        allocations = tuple(map(self._add_shadow, launch.allocations))
        sample = replace(launch, allocations=allocations, chosen_blocks=chosen)
        try:
            for found in module.run(sample, checks):
                raise found
        except UncheckableKernel as refusal:
            record.refusal = _shorten_error(refusal)
            self._stopped = f"it follows {launch.name}, which is not checked"
            return
        except Violation as violation:
            self._recorder.add_finding(record, violation)
            record.programs = record.programs or _count_blocks(violation, chosen)
            self._stopped = f"it follows {launch.name}, whose check ended at a violation"
            return
        if is_new:
            record.programs = len(chosen)
        self._note_extent(module, record)

    def check_copy(self, target: int, source: int | None, size: int) -> None:
        """Check nothing: a copy of host code has no launch."""

    def _add_shadow(self, allocation: Allocation) -> Allocation:
        shadow = (self._shadows or {}).get(allocation.storage_base)
        if shadow is None:
            return allocation
        first = shadow.data_ptr() + allocation.base - allocation.storage_base
        return replace(allocation, uninitialized=first)

    @staticmethod
    def _note_extent(module: PtxModule, record: RehearsedLaunch) -> None:
        memory = module.last_memory
        site = int(memory.extents.argmax())
        if (extent := int(memory.extents[site])) > record.extent:
            record.note_extent(extent, *memory.lowered.sites[site].source.line_key)


@dataclass
class _Preparation:
    """Whether this process and its forks run SGLang's modules beside their stand-ins."""

    obstacle: CallObstacle | None = CallObstacle(UncheckedCause.NOT_PREPARED)


_prepared = _Preparation()


def prepare_modules() -> None:
    """Prepare this process and its forks, or note what is missing."""
    _prepared.obstacle = _prepare_modules()


def _prepare_modules() -> CallObstacle | None:
    if cuda_toolkit.find_toolkit() is None:
        return CallObstacle(UncheckedCause.NO_TOOLKIT)
    if not jit_loader.has_own_loader():
        return CallObstacle(UncheckedCause.NO_LOADER)
    try:
        jit_loader.install_loader(beside_stand_ins=True)
    except UnfixError as error:
        return CallObstacle(UncheckedCause.NOT_PREPARED, _shorten_error(error))
    get_runtime()
    return None


class _NotBuilt(Exception):
    """A module that the compiler refuses, or whose headers are missing."""


def _shorten_error(error: BaseException) -> str:
    """Return the first line of an error."""
    text = str(error).strip() or type(error).__name__
    return _shorten_text(text.splitlines()[0])


def _shorten_text(text: str) -> str:
    """Leave folders of this machine out of a line, and its end."""
    return _FOLDERS.sub("", text)[:_REASON_CHARACTERS]


def _count_blocks(violation: Violation, chosen: tuple[ProgramId, ...]) -> int:
    """Count the blocks that ran up to a violation, which ends the launch; 0 if CUDA refuses it."""
    block = None if violation.location is None else violation.location.program
    return 1 + chosen.index(block) if block in chosen else 0


def _shorten_path(file: str) -> str:
    """Name a source from SGLang's package on."""
    parts = Path(file).parts
    start = len(parts) - 1 - parts[::-1].index("sglang") if "sglang" in parts else -3
    return "/".join(parts[start:])
