"""Cells as tasks of a Ray cluster. The only module that knows Ray.

Ray is told to try nothing again by itself: a worker that dies is a loss that the run counts, and it
decides whether the cell gets another one. Results come back to this process, which alone writes
them down; a node needs this package in its Python, or is brought it (`shipping`), and nothing of it
is shared with other nodes.
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
from harness.runs.matrix import cell_attempt, code_shipping, node_resources
from harness.runs.matrix.cell_attempt import CellTask
from harness.runs.matrix.cell_plan import MachineNeeds
from harness.runs.matrix.cell_scheduler import FinishedAttempt
from harness.store.matrix.values import AttemptOutcome, CellAttempt

MAX_LOG_BYTES = 64_000  # bytes of a log that come back, few enough to travel with the result itself
CONNECT_SECONDS = 10.0  # seconds for a cluster to answer at all
NODE_LOSS_SECONDS = 30.0  # seconds that a node may be away before cells that need it are given up
NODE_POLL_SECONDS = 2.0  # seconds between two looks at the nodes
OBJECT_STORE_BYTES = 80 << 20  # bytes of an own cluster's object store; results are small
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
    """On a node: one attempt, and the end of its log."""
    task = msgspec.msgpack.decode(packed_task, type=CellTask)
    home = (
        code_shipping.install_shipped_code()
        if code_shipping.is_shipped()
        else contextlib.nullcontext()
    )
    with home, tempfile.TemporaryDirectory(prefix="unfix-cell-") as folder:
        made = cell_attempt.run_attempt(task, Path(folder))
        return msgspec.msgpack.encode(made), _read_log_tail(Path(folder) / "log")


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


class RayExecutor:
    """An executor: a task a cell, placed by Ray's own scheduler."""

    def __init__(
        self,
        address: str | None,
        jobs: int | None = None,
        node_loss_seconds: float = NODE_LOSS_SECONDS,
        ship: bool = False,
    ) -> None:
        self.node_loss_seconds = node_loss_seconds
        self._connect(address, jobs, code_shipping.build_runtime_environment() if ship else None)
        self.nodes = _list_alive_nodes()
        self.nodes_checked_at = time.monotonic()
        self.remote_attempt = ray.remote(run_packed_attempt)
        self.running: dict[Any, RunningTask] = {}
        self.queued_by_shape: dict[bytes, int] = {}  # how many of a shape are with Ray now
        self.unplaceable_since: dict[bytes, float] = {}  # since when no node fits a shape

    def _connect(self, address: str | None, jobs: int | None, runtime_environment: Any) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a test harness tells nobody
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
            why = str(error).strip().splitlines()[0]
            raise NotReadyError(_describe_missing_cluster(address, why)) from error

    def describe_shortage(self, needs: MachineNeeds) -> str:
        return node_resources.describe_shortage(needs, self.nodes)

    def has_room(self, needs: MachineNeeds) -> bool:
        """Some more than run at a time, so that no node waits for this process."""
        shape = msgspec.json.encode(needs, order="sorted")
        return (
            self.queued_by_shape.get(shape, 0)
            < 2 * node_resources.count_fitting_cells(needs, self.nodes) + 2
        )

    def start(self, task: CellTask, needs: MachineNeeds) -> None:
        wanted = node_resources.to_ray_resources(needs, self.nodes)
        options = {"num_cpus": needs.cpus, "num_gpus": needs.gpus, "max_retries": 0}
        run = self.remote_attempt.options(
            **options, resources=wanted.resources, accelerator_type=wanted.accelerator
        ).remote(msgspec.msgpack.encode(task))
        self.running[run] = RunningTask(task, needs, time.monotonic())
        shape = msgspec.json.encode(needs, order="sorted")
        self.queued_by_shape[shape] = self.queued_by_shape.get(shape, 0) + 1

    def wait(self, seconds: float) -> list[FinishedAttempt]:
        runs = list(self.running)
        first, rest = ray.wait(runs, num_returns=1, timeout=seconds, fetch_local=False)
        if first and rest:
            first += ray.wait(rest, num_returns=len(rest), timeout=0, fetch_local=False)[0]
        ended = [self._finish_task(run) for run in first]
        return ended + self._give_up_unplaceable()

    def _finish_task(self, reference: Any) -> FinishedAttempt:
        going = self._forget_task(reference)
        task = going.task
        try:
            packed, log = ray.get(reference)
        except LOSS_ERRORS as error:
            return self._make_unrun_attempt(going, AttemptOutcome.LOST, _take_error_line(error))
        except ray.exceptions.RayTaskError as error:
            return self._make_unrun_attempt(going, *_classify_task_error(error))
        except ray.exceptions.RayError as error:
            return self._make_unrun_attempt(
                going, AttemptOutcome.NOT_READY, _take_error_line(error)
            )
        folder = Path(task.log_folder)
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / "log").exists():
            os.replace(folder / "log", folder / f"log.{task.attempt_number - 1}")
        (folder / "log").write_bytes(log)
        return FinishedAttempt(task.cell_id, msgspec.msgpack.decode(packed, type=CellAttempt))

    def _forget_task(self, reference: Any) -> RunningTask:
        going = self.running.pop(reference)
        self.queued_by_shape[msgspec.json.encode(going.needs, order="sorted")] -= 1
        return going

    def _make_unrun_attempt(
        self, running_task: RunningTask, outcome: AttemptOutcome, how: str
    ) -> FinishedAttempt:
        now = cell_attempt.get_timestamp()
        seconds = time.monotonic() - running_task.started
        lost = seconds if outcome is AttemptOutcome.LOST else 0.0
        return FinishedAttempt(
            running_task.task.cell_id,
            CellAttempt(running_task.task.attempt_number, outcome, how, now, lost),
        )

    def _give_up_unplaceable(self) -> list[FinishedAttempt]:
        """Those that wait for nodes which have been away for too long."""
        now = time.monotonic()
        if now < self.nodes_checked_at + NODE_POLL_SECONDS:
            return []
        self.nodes_checked_at = now
        self.nodes = _list_alive_nodes()
        ended = []
        for run, going in list(self.running.items()):
            shape = msgspec.json.encode(going.needs, order="sorted")
            why = node_resources.describe_shortage(going.needs, self.nodes)
            if not why:
                self.unplaceable_since.pop(shape, None)
            elif now > self.unplaceable_since.setdefault(shape, now) + self.node_loss_seconds:
                self._forget_task(run)
                ray.cancel(run, force=True)
                ended.append(
                    self._make_unrun_attempt(going, AttemptOutcome.NOT_READY, f"{why} any more")
                )
        return ended

    def stop(self) -> None:
        for run in self.running:
            # It may have ended this moment, or its worker may be gone.
            with contextlib.suppress(ray.exceptions.RayError):
                ray.cancel(run, force=True)
        self.running.clear()
        self.queued_by_shape.clear()

    def close(self) -> None:
        ray.shutdown()


def _list_alive_nodes() -> list[dict[str, float]]:
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [dict(node["Resources"]) for node in nodes if node["Alive"]]


def _check_address(address: str) -> None:
    """Whether anybody listens there, before Ray waits for it for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return  # 'auto', which Ray knows by itself
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        raise NotReadyError(_describe_missing_cluster(address, str(error))) from error


def _describe_missing_cluster(address: str | None, reason: str) -> str:
    asked = "an own Ray cluster could not be started" if address in (None, "local") else ""
    asked = asked or f"no Ray cluster answers at {address}"
    return (
        f"{asked}: {reason}; start one with `ray start --head`, name it with --address HOST:PORT, "
        "or leave --on ray out"
    )


def _classify_task_error(error: ray.exceptions.RayTaskError) -> tuple[AttemptOutcome, str]:
    cause = error.cause
    # Without our package a worker cannot even read what it is to run: Ray tells that in words.
    last = _take_error_line(error, take_last=True)
    if isinstance(cause, ImportError) or last.startswith(MISSING_MODULE):
        why = last.removeprefix(MISSING_MODULE).strip(": ") or str(cause)
        return (
            AttemptOutcome.NOT_READY,
            f"the node lacks unfix ({why}): install it there, or use --ship",
        )
    if isinstance(cause, OSError):
        return AttemptOutcome.NOT_READY, f"the node could not run it: {cause}"
    return (
        AttemptOutcome.ERROR,
        f"unfix itself failed on the node: {_take_error_line(error, take_last=True)}",
    )


def _take_error_line(error: BaseException, take_last: bool = False) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1 if take_last else 0]
