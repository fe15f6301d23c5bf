"""A worker of the zoo: it imports SGLang on the virtual GPU once, and forks for each architecture.

The request is a JSON object on stdin. Lanes take architectures from a shared queue; each runs in a
fork of its own, which writes its result into a file. A line of the output is a JSON object: first
how long the import took, then the name of each architecture whose file is there.

Invariant: every architecture gets a result. A fork that dies or takes too long gives one that says
so.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from harness.core import child_process, preloading, process_exit, processes
from harness.core.files import write_atomically
from harness.device import installation
from harness.kernels.check import session
from harness.kernels.triton import recorded_reach
from harness.runs.zoo.architecture import Architecture
from harness.runs.zoo.request import ZooWorkerRequest
from harness.store.zoo.values import (
    ArchitectureResult,
    ClaimResult,
    ClaimVerdict,
    ZooClaim,
)

CLAIMS_MODULE = "fixtures.zoo.claims"  # what knows SGLang and transformers
PRELOADED_MODULES = (
    "sglang.srt.layers.attention.triton_backend",
    "sglang.srt.models.registry",
    "transformers.models.llama.modeling_llama",
)
_NUMBER_BYTES = 4  # the size of an architecture's number in the queue
_LOG_BYTES = 6000


class ArchitectureFork:
    """One architecture in a fork of a lane."""

    def __init__(self, claims: Any, request: ZooWorkerRequest, number: int) -> None:
        self.claims = claims
        self.architecture = request.architectures[number]
        self.seconds, self.check = request.seconds, tuple(request.check)
        self.folder = Path(request.folder) / str(number)
        self.folder.mkdir()
        self.result_file = self.folder / "result.json"

    def run(self) -> ArchitectureResult:
        """Run it with graphs; if they are not captured, run it again without and say so."""
        begun = time.monotonic()
        result = self._run_fork(graphs=True)
        if result is None:
            failure = (self.folder / "graph_failure").read_text()
            result = self._run_fork(graphs=False)
            assert result is not None, "graphs were not asked for"
            if result.starts:
                claim = ClaimResult(ZooClaim.GRAPH, ClaimVerdict.FAILS, failure)
                result.claims.append(self.claims.apply_known_reason(self.architecture, claim))
        result.seconds = time.monotonic() - begun
        return result

    def _run_fork(self, graphs: bool) -> ArchitectureResult | None:
        child = child_process.fork(partial(self._run_here, graphs), new_session=True)
        is_late = not child.wait_for_exit(self.seconds)
        if is_late:
            child.send_signal(signal.SIGABRT)  # faulthandler writes the stacks
            if not child.wait_for_exit(3.0):
                child.send_signal(signal.SIGKILL)
        code = child.reap()
        processes.kill_descendants(os.getpid())
        with contextlib.suppress(FileNotFoundError):
            return msgspec.json.decode(self.result_file.read_bytes(), type=ArchitectureResult)
        if code == 0 and not is_late:
            return None  # its graphs were not captured
        limit: dict[str, Any] = {"exceeded_seconds": self.seconds} if is_late else {}
        ended = process_exit.describe_exit(code, **limit)
        log = processes.read_log_tail(self.folder / "output", _LOG_BYTES)
        return make_failure(self.architecture, ended.words, log)

    def _run_here(self, graphs: bool) -> None:
        import faulthandler

        output = child_process.redirect_output(self.folder / "output")
        faulthandler.enable(output)
        os.environ[recorded_reach.LAUNCHER_VARIABLE] = f"zoo {self.architecture.name}"
        model_folder = self.folder / f"model-{graphs}"
        model_folder.mkdir()
        run = self.claims.ArchitectureRun(self.architecture, model_folder, graphs, self.check)
        try:
            result = run.run()
        except self.claims.GraphCaptureFailed as failure:
            (self.folder / "graph_failure").write_text(str(failure))
            return
        write_atomically(self.result_file, msgspec.json.encode(result))


def make_failure(architecture: Architecture, headline: str, detail: str = "") -> ArchitectureResult:
    claim = ClaimResult(ZooClaim.STARTS, ClaimVerdict.FAILS, headline, detail=detail)
    return ArchitectureResult(architecture.name, [claim])


def main() -> None:
    begun = time.monotonic()
    processes.die_with_parent(os.getppid())
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=ZooWorkerRequest)
    answers = os.dup(1)  # SGLang prints to 1, which becomes the log
    os.dup2(2, 1)
    installation.install(request.card)
    preloading.pause_gc_for_imports()
    for name in PRELOADED_MODULES:
        importlib.import_module(name)
    claims = importlib.import_module(CLAIMS_MODULE)
    claims.preload()
    session.preload_checker()
    preloading.freeze_for_forks()
    _send(answers, {"seconds_to_import": time.monotonic() - begun})
    read, write = os.pipe()
    for number in range(len(request.architectures)):
        os.write(write, number.to_bytes(_NUMBER_BYTES))
    os.close(write)
    run_lane = partial(_run_lane, claims, request, read, answers)
    for lane in [child_process.fork(run_lane) for _ in range(request.jobs)]:
        lane.reap()
    os._exit(0)  # an orderly exit would run what SGLang has registered


def _run_lane(claims: Any, request: ZooWorkerRequest, queue: int, answers: int) -> None:
    processes.adopt_orphans()
    while number := os.read(queue, _NUMBER_BYTES):
        fork = ArchitectureFork(claims, request, int.from_bytes(number))
        result = fork.run()
        write_atomically(fork.result_file, msgspec.json.encode(result))
        _send(answers, {"done": int.from_bytes(number)})


def _send(answers: int, message: dict[str, Any]) -> None:
    os.write(answers, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main()
