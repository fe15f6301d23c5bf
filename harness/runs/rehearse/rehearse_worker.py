"""A worker of a rehearsal: it imports SGLang on the virtual GPU once, and forks per deployment."""

from __future__ import annotations

import gc
import importlib
import time
from pathlib import Path
from typing import Any

import msgspec

from harness.core import preloading
from harness.runs.rehearse import cuda_launches
from harness.runs.rehearse.deployment import Deployment
from harness.runs.rehearse.deployment_rehearsal import DeploymentRehearsal
from harness.runs.rehearse.rehearsed_model import preload_loading
from harness.runs.rehearse.request import RehearseWorkerRequest
from harness.sanitizer.check import session
from harness.sanitizer.device import installation
from harness.store.rehearse.values import DeploymentResult
from harness.workers.fork_lanes import AnswerPipe, compute_in_fork, read_request, run_in_lanes
from harness.workers.function_recorder import find_functions

PRELOADED_MODULES = (
    "sglang.srt.layers.attention.triton_backend",
    "sglang.srt.models.registry",
    "sglang.srt.managers.scheduler",
)


def rehearse_deployment(deployment: Deployment, folder: Path, seconds: float) -> DeploymentResult:
    """Rehearse one deployment in a fork."""

    def rehearse_here() -> Any:
        rehearsal = DeploymentRehearsal(deployment, folder, after_load=freeze_loaded_objects)
        return rehearsal.run()

    begun = time.monotonic()
    result, end = compute_in_fork(folder, seconds, rehearse_here, DeploymentResult)
    return result or DeploymentResult(
        deployment.name,
        deployment.model,
        deployment.gpu,
        deployment.gpus,
        deployment.arguments,
        refusal=end.words,
        detail=end.log,
        seconds=time.monotonic() - begun,
    )


def freeze_loaded_objects() -> None:
    """Keep what is loaded out of the collections of garbage: it stays to the end."""
    gc.collect()
    find_functions()
    gc.freeze()


def main() -> None:
    begun = time.monotonic()
    request = msgspec.json.decode(read_request(), type=RehearseWorkerRequest)
    answers = AnswerPipe()
    installation.install_device(request.deployments[0].gpu)
    preloading.pause_gc_for_imports()
    for name in PRELOADED_MODULES:
        importlib.import_module(name)
    preload_loading()
    session.preload_checker()
    cuda_launches.prepare_modules()
    find_functions()
    preloading.freeze_for_forks()
    answers.send({"seconds_to_import": time.monotonic() - begun})
    folder = Path(request.folder)

    def run_deployment(number: int) -> bytes:
        deployment, own_folder = request.deployments[number], folder / str(number)
        result = rehearse_deployment(deployment, own_folder, request.seconds)
        return msgspec.json.encode(result)

    run_in_lanes(len(request.deployments), request.jobs, folder, answers, run_deployment)


if __name__ == "__main__":
    main()
