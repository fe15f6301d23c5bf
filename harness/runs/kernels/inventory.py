"""The inventory of a release: its location in, all of its kernels out."""

from __future__ import annotations

from pathlib import Path

import msgspec

from harness.core.errors import NotReadyError
from harness.patching.child_environment import SINGLE_THREAD, ChildEnvironment
from harness.releases.managed_releases import CPU_BASE
from harness.runs.audit.release_audit import digest_sources
from harness.runs.kernels.values import InventoryRequest, KernelInventory
from harness.workers.answering_process import get_log, iterate_answers

WORKER_MODULE = "harness.runs.kernels.inventory_worker"


def list_kernels(location: Path, release: str, launches: Path) -> KernelInventory:
    digest = digest_sources(location)
    request = InventoryRequest(str(location), digest, release, str(launches.resolve()))
    environment = ChildEnvironment(SINGLE_THREAD)
    environment.use_checkout()
    answers = list(
        iterate_answers(CPU_BASE.python, WORKER_MODULE, msgspec.json.encode(request), environment)
    )
    if not answers:
        tail = get_log().read_text(errors="replace")[-2000:]
        raise NotReadyError(
            f"the kernels of {release} cannot be listed; the end of its log:\n{tail}"
        )
    return msgspec.json.decode(answers[-1], type=KernelInventory)
