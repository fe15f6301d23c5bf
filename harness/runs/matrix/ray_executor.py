"""Runs cells as tasks of a Ray cluster. The only module that imports Ray.

Ray makes no retries by itself: a worker that dies is an attempt with the outcome `lost`, and the
scheduler decides whether the cell runs again. Results come back to this process, which alone writes
the store. A node needs this package in its Python, or gets it by `--ship` (`code_shipping`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import ray
import ray.exceptions

from harness.core.errors import NotReadyError
from harness.core.outcomes import Outcome
from harness.matrices.schema import MachineNeeds
from harness.runs.matrix import cell_attempt, code_shipping, node_resources
from harness.runs.matrix.cell_attempt import CellTask
from harness.runs.matrix.cell_scheduler import CellExecutor, FinishedAttempt, encode_needs
from harness.store.matrix.values import CellAttempt

MAX_LOG_BYTES = 64_000  # size of a log's end that returns with the result
CONNECT_SECONDS = 10.0  # the longest wait for a cluster's answer
NODE_LOSS_SECONDS = 30.0  # without a node until the cells that need it fail
NODE_POLL_SECONDS = 2.0  # time between two checks of the nodes
OBJECT_STORE_BYTES = 80 << 20  # store of a cluster started here; results are small
MISSING_MODULE = ModuleNotFoundError.__name__
LOSS_ERRORS = (
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.NodeDiedError,
    ray.exceptions.LocalRayletDiedError,
    ray.exceptions.OutOfMemoryError,
    ray.exceptions.ObjectLostError,
    ray.exceptions.TaskCancelledError,
)


def run_packed_attempt(packed_task: bytes) -> tuple[bytes, bytes]:
    """Run one attempt on a node; return it with the end of its log."""
    task = msgspec.msgpack.decode(packed_task, type=CellTask)
    home = (
        code_shipping.install_shipped_code()
        if code_shipping.is_shipped()
        else contextlib.nullcontext()
    )
    with home, tempfile.TemporaryDirectory(prefix="unfix-cell-") as folder:
        attempt = cell_attempt.run_attempt(task, Path(folder))
        return msgspec.msgpack.encode(attempt), _read_log_tail(Path(folder) / "log")


def _read_log_tail(log: Path) -> bytes:
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - MAX_LOG_BYTES))
        cut = (
            f"... {size - MAX_LOG_BYTES} bytes before this stayed on the node\n"
            if size > MAX_LOG_BYTES
            else ""
        )
        return cut.encode() + file.read()


class RunningTask(msgspec.Struct, frozen=True):
    task: CellTask
    needs: MachineNeeds
    started: float


class RayExecutor(CellExecutor):
    """One Ray task for a cell, placed by Ray's own scheduler."""

    def __init__(
        self,
        address: str | None,
        jobs: int | None = None,
        node_loss_seconds: float = NODE_LOSS_SECONDS,
        ship: bool = False,
    ) -> None:
        super().__init__()
        self.node_loss_seconds = node_loss_seconds
        self._connect(address, jobs, code_shipping.build_runtime_environment() if ship else None)
        self.nodes = _list_alive_nodes()
        self.nodes_checked_at = time.monotonic()
        self.remote_attempt = ray.remote(run_packed_attempt)
        self.running: dict[Any, RunningTask] = {}
        self.queued_by_shape: dict[bytes, int] = {}  # unfinished tasks, by needs
        self.unplaceable_since: dict[bytes, float] = {}  # keys: needs that no node meets

    def _connect(self, address: str | None, jobs: int | None, runtime_environment: Any) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        address = address or os.environ.get("RAY_ADDRESS")
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        options["runtime_env"] = runtime_environment
        if address in (None, "local"):
            options |= {"address": "local", "num_cpus": jobs, "include_dashboard": False}
            options |= {"object_store_memory": OBJECT_STORE_BYTES}
        else:
            options["address"] = address
            _check_address(str(address))
        try:
            ray.init(**options)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError, OSError) as error:
            reason = str(error).strip().splitlines()[0]
            raise NotReadyError(_describe_missing_cluster(address, reason)) from error

    def describe_shortage(self, needs: MachineNeeds) -> str:
        return node_resources.describe_shortage(needs, self.nodes)

    def has_room(self, needs: MachineNeeds) -> bool:
        """Return True up to twice as many tasks as can run, so no node waits for this process."""
        shape = encode_needs(needs)
        return (
            self.queued_by_shape.get(shape, 0)
            < 2 * node_resources.count_fitting_cells(needs, self.nodes) + 2
        )

    def start(self, task: CellTask, needs: MachineNeeds) -> None:
        custom = node_resources.to_ray_resources(needs, self.nodes)
        options = {"num_cpus": needs.cpus, "num_gpus": needs.gpus, "max_retries": 0}
        run = self.remote_attempt.options(
            **options, resources=custom.resources, accelerator_type=custom.accelerator
        ).remote(msgspec.msgpack.encode(task))
        self.running[run] = RunningTask(task, needs, time.monotonic())
        run.future().add_done_callback(lambda _: self.report_finished())
        shape = encode_needs(needs)
        self.queued_by_shape[shape] = self.queued_by_shape.get(shape, 0) + 1

    def collect_finished(self) -> list[FinishedAttempt]:
        if not self.running:
            return []
        runs = list(self.running)
        done, _ = ray.wait(runs, num_returns=len(runs), timeout=0, fetch_local=False)
        return [self._finish_task(run) for run in done]

    def _finish_task(self, reference: Any) -> FinishedAttempt:
        running = self._forget_task(reference)
        task = running.task
        try:
            packed, log = ray.get(reference)
        except LOSS_ERRORS as error:
            return _make_unrun_attempt(running, Outcome.LOST, _take_error_line(error))
        except ray.exceptions.RayTaskError as error:
            return _make_unrun_attempt(running, *_classify_task_error(error))
        except ray.exceptions.RayError as error:
            return _make_unrun_attempt(running, Outcome.NOT_READY, _take_error_line(error))
        folder = Path(task.log_folder)
        folder.mkdir(parents=True, exist_ok=True)
        cell_attempt.rotate_log(folder, task.attempt_number)
        (folder / "log").write_bytes(log)
        return FinishedAttempt(task.cell_id, msgspec.msgpack.decode(packed, type=CellAttempt))

    def _forget_task(self, reference: Any) -> RunningTask:
        running = self.running.pop(reference)
        self.queued_by_shape[encode_needs(running.needs)] -= 1
        return running

    def give_up_unplaceable(self) -> list[FinishedAttempt]:
        """End the tasks that wait for nodes which have been away for too long."""
        now = time.monotonic()
        if now < self.nodes_checked_at + NODE_POLL_SECONDS:
            return []
        self.nodes_checked_at = now
        self.nodes = _list_alive_nodes()
        finished = []
        for run, running in list(self.running.items()):
            shape = encode_needs(running.needs)
            shortage = node_resources.describe_shortage(running.needs, self.nodes)
            if not shortage:
                self.unplaceable_since.pop(shape, None)
            elif now > self.unplaceable_since.setdefault(shape, now) + self.node_loss_seconds:
                self._forget_task(run)
                ray.cancel(run, force=True)
                reason = f"{shortage} any more"
                finished.append(_make_unrun_attempt(running, Outcome.NOT_READY, reason))
        return finished

    def stop(self) -> None:
        for run in self.running:
            # The task may have ended this moment, or its worker may be gone.
            with contextlib.suppress(ray.exceptions.RayError):
                ray.cancel(run, force=True)
        self.running.clear()
        self.queued_by_shape.clear()

    def close(self) -> None:
        ray.shutdown()
        super().close()


def _make_unrun_attempt(running: RunningTask, outcome: Outcome, reason: str) -> FinishedAttempt:
    """Make the record of an attempt that Ray ended, or never started."""
    seconds = time.monotonic() - running.started if outcome is Outcome.LOST else 0.0
    task, now = running.task, cell_attempt.get_timestamp()
    attempt = CellAttempt(task.attempt_number, outcome, reason, now, seconds)
    return FinishedAttempt(task.cell_id, attempt)


def _list_alive_nodes() -> list[dict[str, float]]:
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [dict(node["Resources"]) for node in nodes if node["Alive"]]


def _check_address(address: str) -> None:
    """Refuse an address without a listener, before Ray waits for it for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return  # 'auto', which Ray resolves itself
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        raise NotReadyError(_describe_missing_cluster(address, str(error))) from error


def _describe_missing_cluster(address: str | None, reason: str) -> str:
    problem = f"no Ray cluster answers at {address}"
    if address in (None, "local"):
        problem = "Ray cannot start a cluster here"
    return (
        f"{problem}: {reason}; start one with `ray start --head`, name it with "
        "--address HOST:PORT, or leave --on ray out"
    )


def _classify_task_error(error: ray.exceptions.RayTaskError) -> tuple[Outcome, str]:
    cause = error.cause
    # Without this package a worker cannot unpickle the task; Ray then gives the error as text.
    last = _take_error_line(error, take_last=True)
    if isinstance(cause, ImportError) or last.startswith(MISSING_MODULE):
        module = last.removeprefix(MISSING_MODULE).strip(": ") or str(cause)
        reason = f"the node lacks unfix ({module}): install it there, or use --ship"
        return Outcome.NOT_READY, reason
    if isinstance(cause, OSError):
        return Outcome.NOT_READY, f"the node could not run it: {cause}"
    return Outcome.ERROR, f"unfix itself failed on the node: {last}"


def _take_error_line(error: BaseException, take_last: bool = False) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1 if take_last else 0]
