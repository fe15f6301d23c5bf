"""A configuration to serve with its items, and the settings that all servers of a run share."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

from harness.matrices.schema import EvaluationConfiguration
from harness.releases import managed_releases
from harness.runs.eval import lm_eval_client
from harness.runs.eval.fault_evidence import ItemsByTask
from harness.workers.servers import server


@dataclass(frozen=True)
class ServingSettings:
    """The settings that all servers of a run share."""

    device: str
    release: str
    folder: Path  # folder of this run
    toggles: tuple[Path, ...]
    always_cold: bool  # no server is forked from a preloaded process
    ready_timeout: float  # seconds until a server must be ready
    request_timeout: float = lm_eval_client.REQUEST_SECONDS  # seconds until an answer must come
    server_module: str = server.COLD_START_MODULE  # the module that serves

    def get_python(self, release: str) -> Path:
        if release == "current":
            return Path(sys.executable)
        return managed_releases.get_release(release).python


@dataclass
class ServingJob:
    """A configuration to serve, and its items."""

    name: str
    configuration: EvaluationConfiguration
    items_by_task: ItemsByTask
    drawn_items: int  # number of items that each task draws
    concurrency: int
    dtype: str
    revert: list[str] = field(default_factory=list)
    enable: list[str] = field(default_factory=list)
    repeated_items: int = 0  # items of a task to send twice, to measure the noise
    request_timeout: float = 0.0  # seconds until an answer must come; 0: the run's
    is_planted: bool = False  # it has a planted fault: what fails is repeated
    fault_items: ItemsByTask = field(default_factory=dict)  # items that fail with planted faults
    server_arguments: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    known_hang: str = ""  # it repeats this hang, and ends where the ranks stand still as they did
