"""The process of `fork_lanes` as a runner sees it: started, read line by line, ended."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.core import paths, processes
from harness.patching.child_environment import HARNESS_PATH, ChildEnvironment
from harness.workers.answering_process import iterate_answers
from harness.workers.fork_lanes import RESULT_NAME
from harness.workers.release_target import ReleaseTarget

_LOG_BYTES = 2000


@dataclass(frozen=True)
class LaneProcess:
    """A worker module of a release, with the toggles of its run."""

    target: ReleaseTarget
    module: str
    folder: Path  # of the run: results, the log, attestations
    revert: Sequence[str]
    enable: Sequence[str]
    toggles: Sequence[Path]

    def iterate_messages(self, request: bytes) -> Iterator[dict[str, Any]]:
        """Yield each message; a result of an item comes as its bytes, under "result"."""
        environment = ChildEnvironment({"OMP_NUM_THREADS": "1"})
        if self.revert or self.enable:
            environment.set_toggles(
                self.revert, self.enable, self.toggles, self.folder / "attestations"
            )
        environment.add_python_path(*HARNESS_PATH)
        called = self.target.python, self.module, request, environment
        for line in iterate_answers(*called, self._log, paths.project_folder()):
            message = json.loads(line)
            if "done" in message:
                folder = self.folder / str(message["done"])
                message["result"] = (folder / RESULT_NAME).read_bytes()
                shutil.rmtree(folder, ignore_errors=True)
            yield message

    def read_log(self) -> str:
        return processes.read_log_tail(self._log, _LOG_BYTES)

    @property
    def _log(self) -> Path:
        return self.folder / "worker.log"
