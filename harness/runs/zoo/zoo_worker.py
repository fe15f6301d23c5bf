"""A worker of the zoo: it imports SGLang on the virtual GPU once, and forks per architecture."""

from __future__ import annotations

import contextlib
import importlib
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from harness.core import preloading
from harness.core.files import write_atomically
from harness.device import installation
from harness.kernels.check import session
from harness.kernels.triton import recorded_reach
from harness.runs.zoo.request import ZooWorkerRequest
from harness.store.zoo.values import (
    ArchitectureResult,
    ClaimResult,
    ClaimVerdict,
    ZooClaim,
)
from harness.workers.fork_lanes import (
    RESULT_NAME,
    AnswerPipe,
    measure_processor_seconds,
    read_request,
    run_fork,
    run_in_lanes,
)
from harness.workers.function_recorder import find_functions, record_functions

CLAIMS_MODULE = "fixtures.zoo.claims"  # what knows SGLang and transformers
FAMILY_MODULE = "fixtures.zoo.family_run"
PRELOADED_MODULES = (
    "sglang.srt.layers.attention.triton_backend",
    "sglang.srt.models.registry",
    "transformers.models.llama.modeling_llama",
)


class ArchitectureFork:
    """One architecture in a fork of a lane."""

    def __init__(self, claims: Any, request: ZooWorkerRequest, number: int) -> None:
        self.claims = claims
        self.architecture = request.architectures[number]
        self.seconds, self.check = request.seconds, tuple(request.check)
        self.folder = Path(request.folder) / str(number)
        self.result_file = self.folder / RESULT_NAME

    def run(self) -> ArchitectureResult:
        """Run it with graphs; if they are not captured, run it again without and say so."""
        result = self._run_fork(graphs=True)
        if result is None:
            failure = (self.folder / "graph_failure").read_text()
            result = self._run_fork(graphs=False)
            assert result is not None, "graphs were not asked for"
            if result.starts:
                claim = ClaimResult(ZooClaim.GRAPH, ClaimVerdict.FAILS, failure)
                result.claims.append(self.claims.apply_known_reason(self.architecture, claim))
        return result

    def _run_fork(self, graphs: bool) -> ArchitectureResult | None:
        end = run_fork(self.folder, self.seconds, partial(self._run_here, graphs))
        with contextlib.suppress(FileNotFoundError):
            return msgspec.json.decode(self.result_file.read_bytes(), type=ArchitectureResult)
        if end.is_normal:
            return None  # its graphs were not captured
        return make_failure(self.architecture.name, end.words, end.log)

    def _run_here(self, graphs: bool) -> None:
        os.environ[recorded_reach.LAUNCHER_VARIABLE] = f"zoo {self.architecture.name}"
        model_folder = self.folder / f"model-{graphs}"
        model_folder.mkdir()
        run = self.claims.ArchitectureRun(self.architecture, model_folder, graphs, self.check)
        try:
            with record_functions() as functions:
                result = run.run()
        except self.claims.GraphCaptureFailed as failure:
            (self.folder / "graph_failure").write_text(str(failure))
            return
        result.functions = functions
        write_atomically(self.result_file, msgspec.json.encode(result))


class FamilyFork:
    """One family of kernels in a fork of a lane."""

    def __init__(self, request: ZooWorkerRequest, number: int) -> None:
        self.name = request.families[number - len(request.architectures)]
        self.seconds = request.seconds
        self.folder = Path(request.folder) / str(number)
        self.result_file = self.folder / RESULT_NAME

    def run(self) -> ArchitectureResult:
        end = run_fork(self.folder, self.seconds, self._run_here)
        if end.is_normal:
            result = msgspec.json.decode(self.result_file.read_bytes(), type=ArchitectureResult)
        else:
            result = make_failure(self.name, end.words, end.log)
            result.is_family = True
        return result

    def _run_here(self) -> None:
        os.environ[recorded_reach.LAUNCHER_VARIABLE] = f"zoo {self.name}"
        family_run = importlib.import_module(FAMILY_MODULE)
        with record_functions() as functions:
            result = family_run.FamilyRun(self.name).run()
        result.functions = functions
        write_atomically(self.result_file, msgspec.json.encode(result))


def make_failure(name: str, headline: str, detail: str = "") -> ArchitectureResult:
    claim = ClaimResult(ZooClaim.STARTS, ClaimVerdict.FAILS, headline, detail=detail)
    return ArchitectureResult(name, [claim])


def main() -> None:
    begun = time.monotonic()
    request = msgspec.json.decode(read_request(), type=ZooWorkerRequest)
    answers = AnswerPipe()
    installation.install_device(request.card)
    preloading.pause_gc_for_imports()
    for name in PRELOADED_MODULES:
        importlib.import_module(name)
    claims = importlib.import_module(CLAIMS_MODULE)
    claims.preload_modules()
    session.preload_checker()
    find_functions()
    preloading.freeze_for_forks()
    answers.send({"seconds_to_import": time.monotonic() - begun})

    models = len(request.architectures)

    def run_row(number: int) -> bytes:
        is_model = number < models
        fork = (
            ArchitectureFork(claims, request, number) if is_model else FamilyFork(request, number)
        )
        begun, used = time.monotonic(), measure_processor_seconds()
        result = fork.run()
        result.seconds = time.monotonic() - begun
        result.processor_seconds = measure_processor_seconds() - used
        return msgspec.json.encode(result)

    count = models + len(request.families)
    run_in_lanes(count, request.jobs, Path(request.folder), answers, run_row)


if __name__ == "__main__":
    main()
