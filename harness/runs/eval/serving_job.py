"""A configuration to serve with its items, and the settings that all servers of a run share.

Both together make the setup of its server.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

from harness.core.device import VIRTUAL
from harness.matrices.schema import EvaluationConfiguration
from harness.releases import managed_releases
from harness.runs.eval import lm_eval_client, model_folders
from harness.runs.eval.configuration_checks import TRANSFORMERS_ENGINE
from harness.runs.eval.fault_evidence import ItemsByTask
from harness.sanitizer.gpu import DEFAULT_CHECKS
from harness.sanitizer.triton import recorded_reach
from harness.workers.servers import adaptations, server
from harness.workers.servers.server import DEFAULT_ENVIRONMENT, ServerSetup

CPU_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TORCH_COMPILE_DISABLE": "1"}
# The checks of compiled kernels on a GPU; the server ends at the first report.
GPU_CHECKS = ",".join((*DEFAULT_CHECKS, "stop"))


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


def make_server_setup(job: ServingJob, settings: ServingSettings, release: str) -> ServerSetup:
    """Make the setup of the server of a job, on the device of the run."""
    configuration = job.configuration
    python = settings.get_python(release)
    environment = {
        **DEFAULT_ENVIRONMENT,
        **(CPU_ENVIRONMENT if settings.device != "cuda" else {}),
        recorded_reach.LAUNCHER_VARIABLE: f"server {configuration.name}",
        **job.environment,
    }
    if configuration.engine == TRANSFORMERS_ENGINE:
        return ServerSetup(
            python,
            (str(model_folders.find_model_folder(configuration.model)),),
            release,
            environment=environment,
            module=server.REFERENCE_MODULE,
        )

    def find_folder(name: str) -> str:
        folder = model_folders.find_model_folder(name)
        return str(model_folders.make_dtype_variant(folder, job.dtype))

    arguments = [*job.server_arguments, "--model-path", find_folder(configuration.model)]
    if adaptations.RANDOM_WEIGHTS in configuration.stand_ins:
        arguments += ["--load-format", "dummy"]
    if configuration.draft:
        arguments += [f"--{model_folders.DRAFT_MODEL_OPTION}", find_folder(configuration.draft)]
    if job.dtype:
        arguments += ["--dtype", job.dtype]
    if settings.device == "cpu":
        arguments += ["--device", "cpu"]
    checked = settings.device == "cuda" and adaptations.CHECKED_KERNELS in configuration.stand_ins
    checks = GPU_CHECKS if checked else ""
    return ServerSetup(
        python,
        tuple(arguments),
        release,
        tuple(job.revert),
        tuple(job.enable),
        settings.toggles,
        tuple(configuration.stand_ins),
        environment,
        settings.server_module,
        checks,
        settings.device == VIRTUAL,
    )
