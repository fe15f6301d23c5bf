"""A worker of the zoo: it imports SGLang on the virtual GPU once, and forks per architecture."""

from __future__ import annotations

import importlib
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch

from harness.core import preloading
from harness.core.outcomes import Verdict
from harness.runs.zoo import claims
from harness.runs.zoo.answering_server import preload_server
from harness.runs.zoo.family_run import FamilyRun
from harness.runs.zoo.feature_forks import BATCH_FILE, FeatureForks
from harness.runs.zoo.request import ZooWorkerRequest
from harness.sanitizer.check import session
from harness.sanitizer.device import installation
from harness.sanitizer.triton import recorded_reach
from harness.store.zoo.values import ArchitectureResult, ClaimResult, ZooClaim
from harness.workers.fork_lanes import (
    AnswerPipe,
    compute_in_fork,
    measure_processor_seconds,
    read_request,
    run_in_lanes,
)
from harness.workers.function_recorder import find_functions

PRELOADED_MODULES = (
    "sglang.srt.layers.attention.triton_backend",
    "sglang.srt.models.registry",
    "transformers.models.llama.modeling_llama",
)


class ArchitectureFork:
    """One architecture in a fork of a lane."""

    def __init__(self, request: ZooWorkerRequest, number: int) -> None:
        self.architecture = request.architectures[number]
        self.seconds, self.check = request.seconds, tuple(request.check)
        self.layout, self.sum_order = request.layout, request.sum_order
        self.folder = Path(request.folder) / str(number)
        self.features = request.features

    def run(self) -> ArchitectureResult:
        """Run it with graphs; if they are not captured, run it again without and say so."""
        result = self._run_fork(graphs=self.layout.count == 1)
        if result is None:
            failure = (self.folder / "graph_failure").read_text()
            result = self._run_fork(graphs=False)
            assert result is not None, "no graphs were to be captured"
            if result.starts:
                claim = ClaimResult(ZooClaim.GRAPH, Verdict.FAILS, failure)
                result.claims.append(claims.apply_known_reason(self.architecture, claim))
        if self.features and result.starts:
            self._add_features(result)
        return result

    def _add_features(self, result: ArchitectureResult) -> None:
        [file] = self.folder.glob(f"model-*/{BATCH_FILE}")
        forks = FeatureForks(
            *(self.architecture, self.folder, file.parent, self.seconds, self.check, self.features)
        )
        forks.add_to(result)

    def _run_fork(self, graphs: bool) -> ArchitectureResult | None:
        """Return the result of a fork; None if its graphs were not captured."""
        compute = partial(self._compute_result, graphs)
        result, end = compute_in_fork(self.folder, self.seconds, compute, ArchitectureResult)
        if result is None and not end.is_normal:
            result = make_failure(self.architecture.name, end.words, end.log)
            result.ranks = str(self.layout)
        return result

    def _compute_result(self, graphs: bool) -> ArchitectureResult | None:
        os.environ[recorded_reach.LAUNCHER_VARIABLE] = f"zoo {self.architecture.name}"
        model_folder = self.folder / f"model-{graphs}"
        model_folder.mkdir()
        run = claims.ArchitectureRun(
            self.architecture, model_folder, graphs, self.check, self.layout, self.sum_order
        )
        result: ArchitectureResult | None = None
        try:
            result = run.run()
        except claims.GraphCaptureFailed as failure:
            (self.folder / "graph_failure").write_text(str(failure))
        if self.features and result is not None and result.starts:
            prompts = [prompt.tokens for prompt in run.prompts]
            torch.save((run.batch, run.order_tolerance, prompts), model_folder / BATCH_FILE)
        return result


def run_family(request: ZooWorkerRequest, number: int) -> ArchitectureResult:
    """Run one family of kernels in a fork of a lane."""
    name = request.families[number - len(request.architectures)]

    def compute_result() -> Any:
        os.environ[recorded_reach.LAUNCHER_VARIABLE] = f"zoo {name}"
        return FamilyRun(name, request.mended).run()

    folder = Path(request.folder) / str(number)
    result, end = compute_in_fork(folder, request.seconds, compute_result, ArchitectureResult)
    if result is None:
        result = make_failure(name, end.words, end.log)
        result.is_family = True
    return result


def make_failure(name: str, headline: str, detail: str = "") -> ArchitectureResult:
    claim = ClaimResult(ZooClaim.STARTS, Verdict.FAILS, headline, detail=detail)
    return ArchitectureResult(name, [claim])


def main() -> None:
    begun = time.monotonic()
    request = msgspec.json.decode(read_request(), type=ZooWorkerRequest)
    answers = AnswerPipe()
    installation.install_device(request.card)
    preloading.pause_gc_for_imports()
    for name in PRELOADED_MODULES:
        importlib.import_module(name)
    claims.preload_modules()
    if request.features:
        preload_server()
    session.preload_checker()
    find_functions()
    preloading.freeze_for_forks()
    answers.send({"seconds_to_import": time.monotonic() - begun})

    models = len(request.architectures)

    def run_row(number: int) -> bytes:
        begun, used = time.monotonic(), measure_processor_seconds()
        if number < models:
            result = ArchitectureFork(request, number).run()
        else:
            result = run_family(request, number)
        result.seconds = time.monotonic() - begun
        result.processor_seconds = measure_processor_seconds() - used
        return msgspec.json.encode(result)

    count = models + len(request.families)
    run_in_lanes(count, request.jobs, Path(request.folder), answers, run_row)


if __name__ == "__main__":
    main()
