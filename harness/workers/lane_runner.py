"""A run in lanes: one worker process of the release, whose results are stored as they arrive."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec

from harness.core.errors import UnfixError
from harness.store.lane_runs import LaneRun, LaneRunTable
from harness.workers.lane_process import LaneProcess

LaneRunT = TypeVar("LaneRunT", bound=LaneRun)


class LaneListener:
    """A listener that ignores the progress of a run; a subclass shows it."""

    def report_import(self, seconds: float) -> None: ...

    def report_result(self, run: Any, result: Any) -> None: ...


class LaneRunner(Generic[LaneRunT]):
    """One run, from the start of its worker to its end."""

    def __init__(
        self,
        worker: LaneProcess,
        run: LaneRunT,
        table: LaneRunTable[LaneRunT],
        listener: LaneListener,
    ) -> None:
        self.worker, self.run, self.table, self.listener = worker, run, table, listener

    def execute(self, work: msgspec.Struct) -> None:
        """Run until each item has a result, or until Ctrl-C; all results are stored."""
        with self.table.record_run(self.run), self._use_folder():
            for number, result in self._iterate_results(work):
                self.run.results.append(result)
                self.table.save_result(self.run.id, number, result)
                self.listener.report_result(self.run, result)
            if len(self.run.results) != len(self.run.planned):
                raise UnfixError(
                    f"the worker of this {self.table.noun} ended early:\n{self.worker.read_log()}"
                )

    @contextlib.contextmanager
    def _use_folder(self) -> Iterator[None]:
        self.worker.folder.mkdir(parents=True)
        try:
            yield
        finally:
            shutil.rmtree(self.worker.folder, ignore_errors=True)

    def _iterate_results(self, work: msgspec.Struct) -> Iterator[tuple[int, Any]]:
        (result_type,) = self.table.item_types.values()
        for message in self.worker.iterate_messages(msgspec.json.encode(work)):
            if "seconds_to_import" in message:
                self.run.seconds_to_import = message["seconds_to_import"]
                self.listener.report_import(self.run.seconds_to_import)
            else:
                result = msgspec.json.decode(message["result"], type=result_type)
                yield message["done"], result
