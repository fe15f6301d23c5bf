"""A zoo run: one worker process of the release, whose results are stored as they arrive."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import IO

import msgspec

from harness.core import paths
from harness.core.errors import UnfixError
from harness.patching.child_environment import HARNESS_PATH, ChildEnvironment
from harness.runs.zoo.request import ZooRequest, ZooWorkerRequest
from harness.store.zoo.table import ZooTable
from harness.store.zoo.values import ArchitectureResult, ZooRun
from harness.workers.release_target import ReleaseTarget


class ZooListener:
    """A listener that ignores the progress of a run; a subclass shows it."""

    def report_import(self, seconds: float) -> None: ...

    def report_result(self, run: ZooRun, result: ArchitectureResult) -> None: ...


class ZooRunner:
    """One run, from the start of its worker to its end."""

    def __init__(
        self,
        target: ReleaseTarget,
        request: ZooRequest,
        work: ZooWorkerRequest,
        run: ZooRun,
        store: ZooTable,
        listener: ZooListener,
    ) -> None:
        self.target, self.request, self.work = target, request, work
        self.run, self.store, self.listener = run, store, listener
        self.folder = Path(work.folder)

    def execute(self) -> None:
        """Run until each architecture has a result, or until Ctrl-C; all results are stored."""
        begun = time.monotonic()
        self.run.status = "stopped"
        self.store.begin(self.run)
        self.folder.mkdir(parents=True)
        log = self.folder / "worker.log"
        try:
            with log.open("wb") as output, self._start_worker(output) as worker:
                try:
                    self._collect_results(worker)
                finally:
                    worker.kill()
            if self.run.status != "finished":
                tail = log.read_text(errors="replace")[-2000:]
                raise UnfixError(f"the zoo's worker ended early:\n{tail}")
        finally:
            self.run.seconds = time.monotonic() - begun
            self.store.save(self.run)
            shutil.rmtree(self.folder, ignore_errors=True)

    def _start_worker(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        environment = ChildEnvironment({"OMP_NUM_THREADS": "1"})
        request = self.request
        if request.revert or request.enable:
            attestations = self.folder / "attestations"
            environment.set_toggles(request.revert, request.enable, request.toggles, attestations)
        environment.add_python_path(*HARNESS_PATH)
        worker = subprocess.Popen(
            [str(self.target.python), "-P", "-m", "harness.runs.zoo.zoo_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            cwd=paths.project_folder(),
        )
        assert worker.stdin is not None
        worker.stdin.write(msgspec.json.encode(self.work))
        worker.stdin.close()
        return worker

    def _collect_results(self, worker: subprocess.Popen[bytes]) -> None:
        assert worker.stdout is not None
        for line in worker.stdout:
            message = json.loads(line)
            if "seconds_to_import" in message:
                self.run.seconds_to_import = message["seconds_to_import"]
                self.listener.report_import(self.run.seconds_to_import)
                continue
            number = message["done"]
            file = self.folder / str(number) / "result.json"
            result = msgspec.json.decode(file.read_bytes(), type=ArchitectureResult)
            shutil.rmtree(file.parent, ignore_errors=True)
            self.run.architectures.append(result)
            self.store.save_result(self.run.id, number, result)
            self.listener.report_result(self.run, result)
        if len(self.run.architectures) == len(self.run.planned):
            self.run.status = "finished"
