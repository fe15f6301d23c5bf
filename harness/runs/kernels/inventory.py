"""The inventory of a release: its location in, all of its kernels out.

It is cached on disk until the sources, the recorded launches or the code of ours change.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from harness.core.cache import get_or_compute, is_cached
from harness.core.code_digest import compute_digest, digest_code
from harness.core.errors import NotReadyError
from harness.patching.child_environment import SINGLE_THREAD, ChildEnvironment
from harness.releases.managed_releases import CPU_BASE
from harness.runs.audit.release_audit import describe_worker, digest_sources
from harness.runs.kernels.values import InventoryRequest, KernelInventory
from harness.workers.answering_process import get_log, iterate_answers

WORKER_MODULE = "harness.runs.kernels.inventory_worker"


def list_kernels(
    location: Path, release: str, launches: Path, report: Callable[[str], None]
) -> KernelInventory:
    digest = digest_sources(location)
    key = compute_inventory_key(location, release, launches, digest)
    if not is_cached("inventories", key):
        report(f"reading the kernels of {release}, once: about half a minute")
    request = InventoryRequest(str(location), digest, release, str(launches.resolve()))
    data: bytes = get_or_compute("inventories", key, lambda: _list_in_worker(request, report))
    return msgspec.json.decode(data, type=KernelInventory)


def compute_inventory_key(location: Path, release: str, launches: Path, digest: str) -> str:
    return compute_digest(
        *(digest_code("runs"), describe_worker(), launches.read_bytes()),
        *(release, str(location), digest),
    )


def _list_in_worker(request: InventoryRequest, report: Callable[[str], None]) -> bytes:
    environment = ChildEnvironment(SINGLE_THREAD)
    environment.use_checkout()
    for answer in iterate_answers(
        CPU_BASE.python, WORKER_MODULE, msgspec.json.encode(request), environment
    ):
        if answer.startswith(b"{"):
            return answer
        report(answer.decode().strip())
    tail = get_log().read_text(errors="replace")[-2000:]
    raise NotReadyError(
        f"the kernels of {request.release} cannot be listed; the end of its log:\n{tail}"
    )
