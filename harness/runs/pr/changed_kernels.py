"""The kernels that a change touches: listed, and run on the same launches before and after."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from harness.core import paths
from harness.core.code_digest import compute_digest
from harness.core.errors import NotReadyError
from harness.patching.child_environment import SINGLE_THREAD, ChildEnvironment
from harness.releases.managed_releases import CPU_BASE
from harness.runs.audit.release_audit import digest_sources
from harness.runs.mutate import line_coverage
from harness.runs.mutate.request import MutationPlan
from harness.runs.pr import source_change
from harness.runs.pr.source_change import SourceChange
from harness.sanitizer.triton import capture_folder
from harness.store.pr.part_results import KernelAnswer, KernelChange
from harness.workers.answering_process import get_log, iterate_answers

DONE_NAME = "done"
WORKER = "harness.runs.pr.replay_worker"


@dataclass(frozen=True)
class BaseKernelLines:
    """The lines of a kernel of the base."""

    module: str
    numbers: frozenset[int]


@dataclass(frozen=True)
class ChangedKernel:
    """A changed kernel, and the base's kernel of its name if there is one."""

    change: KernelChange
    earlier: str  # module:name, or nothing
    earlier_lines: BaseKernelLines


def list_changed_kernels(change: SourceChange) -> list[ChangedKernel]:
    return _run_worker(change, None)


def compare_kernels(change: SourceChange, folder: Path) -> list[KernelChange]:
    """Run the captured launches of a folder on both ends."""
    changes = [one.change for one in _run_worker(change, folder)]
    return sorted(changes, key=lambda one: (list(KernelAnswer).index(one.answer), one.kernel))


def compute_capture_key(plan: MutationPlan, kernels: Iterable[str], guards: Iterable[str]) -> str:
    """Compute a digest of all that the launches of these guards depend on."""
    return compute_digest(
        line_coverage.compute_coverage_key(plan.target, plan.profile, plan.toggle_folders),
        line_coverage.digest_suites(plan.working_folder),
        *sorted(kernels),
        "",
        *sorted(guards),
    )


def prepare_capture(key: str, kernels: Iterable[str]) -> tuple[Path, bool]:
    """Return the folder for the launches of these kernels, and whether they are in it already."""
    folder = paths.state_folder() / "captured" / key
    if (folder / DONE_NAME).exists():
        return folder, True
    capture_folder.write_wanted_kernels(folder, sorted(kernels))
    return folder, False


def _run_worker(change: SourceChange, folder: Path | None) -> list[ChangedKernel]:
    places = [source_change.get_location(tree) for tree in (change.base, change.head)]
    request = {
        "locations": list(map(str, places)),
        "source_digests": list(map(digest_sources, places)),
        "modules": change.modules,
        "captured": str(folder) if folder else "",
    }
    environment = ChildEnvironment(SINGLE_THREAD)
    environment.use_checkout()
    lines = iterate_answers(CPU_BASE.python, WORKER, json.dumps(request).encode(), environment)
    listed = []
    is_whole = False
    for line in lines:
        answer = json.loads(line)
        if is_whole := "end" in answer:
            break
        one = msgspec.convert(answer["change"], KernelChange)
        one.path = change.locate(one.kernel.partition(":")[0])
        first, last = answer["lines"]
        area = BaseKernelLines(
            answer["earlier"].partition(":")[0], frozenset(range(first, last + 1))
        )
        listed.append(ChangedKernel(one, answer["earlier"], area))
    if not is_whole:
        raise NotReadyError(f"the comparison of kernels was cut short: see {get_log()}")
    return listed
