"""A worker of a rehearsal: it imports SGLang on the virtual GPU once, and forks per deployment."""

from __future__ import annotations

import contextlib
import gc
import importlib
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from harness.core import preloading
from harness.core.files import write_atomically
from harness.device import installation
from harness.kernels.check import session
from harness.runs.rehearse import cuda_launches
from harness.runs.rehearse.deployment import Deployment
from harness.runs.rehearse.request import RehearseWorkerRequest
from harness.store.rehearse.values import DeploymentResult
from harness.workers.fork_lanes import (
    RESULT_NAME,
    AnswerPipe,
    read_request,
    run_fork,
    run_in_lanes,
)
from harness.workers.function_recorder import find_functions, record_functions

REHEARSAL_MODULE = "fixtures.rehearse.deployment_rehearsal"  # what knows SGLang
PRELOADED_MODULES = (
    "sglang.srt.layers.attention.triton_backend",
    "sglang.srt.models.registry",
    "sglang.srt.managers.scheduler",
)


def rehearse_deployment(
    rehearsals: Any, deployment: Deployment, folder: Path, seconds: float
) -> DeploymentResult:
    """Rehearse one deployment in a fork."""
    result_file = folder / RESULT_NAME

    def rehearse_here() -> None:
        with record_functions() as functions:
            rehearsal = rehearsals.DeploymentRehearsal(
                deployment, folder, after_load=freeze_loaded_objects
            )
            result = rehearsal.run()
        result.functions = functions
        write_atomically(result_file, msgspec.json.encode(result))

    begun = time.monotonic()
    end = run_fork(folder, seconds, rehearse_here)
    with contextlib.suppress(FileNotFoundError):
        return msgspec.json.decode(result_file.read_bytes(), type=DeploymentResult)
    return DeploymentResult(
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
    rehearsals = importlib.import_module(REHEARSAL_MODULE)
    rehearsals.preload_modules()
    session.preload_checker()
    cuda_launches.prepare_modules()
    find_functions()
    preloading.freeze_for_forks()
    answers.send({"seconds_to_import": time.monotonic() - begun})
    folder = Path(request.folder)
    rehearse = partial(rehearse_deployment, rehearsals)

    def run_deployment(number: int) -> bytes:
        deployment = request.deployments[number]
        result = rehearse(deployment, folder / str(number), request.seconds)
        return msgspec.json.encode(result)

    run_in_lanes(len(request.deployments), request.jobs, folder, answers, run_deployment)


if __name__ == "__main__":
    main()
