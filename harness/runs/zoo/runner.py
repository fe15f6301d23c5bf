"""A zoo run: one worker process of the release, whose results are stored as they arrive."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import msgspec

from harness.core.errors import UnfixError
from harness.runs.zoo.request import ZooRequest, ZooWorkerRequest
from harness.store.zoo.table import ZooTable
from harness.store.zoo.values import ArchitectureResult, ZooRun
from harness.workers.lane_process import LaneProcess
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
        self.work, self.run, self.store, self.listener = work, run, store, listener
        self.folder = Path(work.folder)
        self.worker = LaneProcess(
            target,
            "harness.runs.zoo.zoo_worker",
            self.folder,
            request.revert,
            request.enable,
            request.toggles,
        )

    def execute(self) -> None:
        """Run until each architecture has a result, or until Ctrl-C; all results are stored."""
        begun = time.monotonic()
        self.run.status = "stopped"
        self.store.begin(self.run)
        self.folder.mkdir(parents=True)
        try:
            self._collect_results()
            if self.run.status != "finished":
                raise UnfixError(f"the zoo's worker ended early:\n{self.worker.read_log()}")
        finally:
            self.run.seconds = time.monotonic() - begun
            self.store.save(self.run)
            shutil.rmtree(self.folder, ignore_errors=True)

    def _collect_results(self) -> None:
        for message in self.worker.iterate_messages(msgspec.json.encode(self.work)):
            if "seconds_to_import" in message:
                self.run.seconds_to_import = message["seconds_to_import"]
                self.listener.report_import(self.run.seconds_to_import)
                continue
            result = msgspec.json.decode(message["result"], type=ArchitectureResult)
            self.run.architectures.append(result)
            self.store.save_result(self.run.id, message["done"], result)
            self.listener.report_result(self.run, result)
        if len(self.run.architectures) == len(self.run.planned):
            self.run.status = "finished"
