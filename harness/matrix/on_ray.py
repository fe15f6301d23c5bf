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

from harness.errors import NotReady
from harness.matrix import attempting, shapes, shipping
from harness.matrix.attempting import Task
from harness.matrix.running import Ended
from harness.matrix.values import Needs
from harness.store.matrix.values import Attempt, Outcome

LOG = 64_000  # bytes of a log that come back, few enough to travel with the result itself
PATIENCE = 10.0  # seconds for a cluster to answer at all
GONE = 30.0  # seconds that a node may be away before cells that need it are given up
LOOK = 2.0  # seconds between two looks at the nodes
OBJECTS = 80 << 20  # bytes of an own cluster's object store; results are small
MISSING = ModuleNotFoundError.__name__
LOST = (
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.NodeDiedError,
    ray.exceptions.LocalRayletDiedError,
    ray.exceptions.OutOfMemoryError,
    ray.exceptions.ObjectLostError,
    ray.exceptions.TaskCancelledError,
)


def attempt_here(packed: bytes) -> tuple[bytes, bytes]:
    """On a node: one attempt, and the end of its log."""
    task = msgspec.msgpack.decode(packed, type=Task)
    home = shipping.settled() if shipping.abroad() else contextlib.nullcontext()
    with home, tempfile.TemporaryDirectory(prefix="unfix-cell-") as folder:
        made = attempting.attempt(task, Path(folder))
        return msgspec.msgpack.encode(made), _end_of(Path(folder) / "log")


def _end_of(log: Path) -> bytes:
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LOG))
        cut = f"... {size - LOG} bytes before this stayed on the node\n" if size > LOG else ""
        return cut.encode() + file.read()


class Going(msgspec.Struct, frozen=True):
    task: Task
    needs: Needs
    started: float


class OnRay:
    """An executor: a task a cell, placed by Ray's own scheduler."""

    def __init__(
        self,
        address: str | None,
        jobs: int | None = None,
        gone: float = GONE,
        ship: bool = False,
    ) -> None:
        self.gone = gone
        self._connect(address, jobs, shipping.environment() if ship else None)
        self.nodes = _alive()
        self.looked = time.monotonic()
        self.run = ray.remote(attempt_here)
        self.going: dict[Any, Going] = {}
        self.waits: dict[bytes, int] = {}  # how many of a shape are with Ray now
        self.away: dict[bytes, float] = {}  # since when no node fits a shape

    def _connect(self, address: str | None, jobs: int | None, brings: Any) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a test harness tells nobody
        address = address or os.environ.get("RAY_ADDRESS")
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        options["runtime_env"] = brings
        if address in (None, "local"):
            options |= {"address": "local", "num_cpus": jobs, "include_dashboard": False}
            options |= {"object_store_memory": OBJECTS}
        else:
            options["address"] = address
            _answers(str(address))
        try:
            ray.init(**options)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError, OSError) as error:
            why = str(error).strip().splitlines()[0]
            raise NotReady(_no_cluster(address, why)) from error

    def lacking(self, needs: Needs) -> str:
        return shapes.lacking(needs, self.nodes)

    def room(self, needs: Needs) -> bool:
        """Some more than run at a time, so that no node waits for this process."""
        shape = msgspec.json.encode(needs, order="sorted")
        return self.waits.get(shape, 0) < 2 * shapes.fitting(needs, self.nodes) + 2

    def start(self, task: Task, needs: Needs) -> None:
        wanted = shapes.wanted(needs, self.nodes)
        options = {"num_cpus": needs.cpus, "num_gpus": needs.gpus, "max_retries": 0}
        run = self.run.options(
            **options, resources=wanted.resources, accelerator_type=wanted.accelerator
        ).remote(msgspec.msgpack.encode(task))
        self.going[run] = Going(task, needs, time.monotonic())
        shape = msgspec.json.encode(needs, order="sorted")
        self.waits[shape] = self.waits.get(shape, 0) + 1

    def wait(self, seconds: float) -> list[Ended]:
        runs = list(self.going)
        first, rest = ray.wait(runs, num_returns=1, timeout=seconds, fetch_local=False)
        if first and rest:
            first += ray.wait(rest, num_returns=len(rest), timeout=0, fetch_local=False)[0]
        ended = [self._ended(run) for run in first]
        return ended + self._given_up()

    def _ended(self, run: Any) -> Ended:
        going = self._forget(run)
        task = going.task
        try:
            packed, log = ray.get(run)
        except LOST as error:
            return self._not_run(going, Outcome.LOST, _first_line(error))
        except ray.exceptions.RayTaskError as error:
            return self._not_run(going, *_own_fault(error))
        except ray.exceptions.RayError as error:
            return self._not_run(going, Outcome.NOT_READY, _first_line(error))
        folder = Path(task.folder)
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / "log").exists():
            os.replace(folder / "log", folder / f"log.{task.number - 1}")
        (folder / "log").write_bytes(log)
        return Ended(task.cell, msgspec.msgpack.decode(packed, type=Attempt))

    def _forget(self, run: Any) -> Going:
        going = self.going.pop(run)
        self.waits[msgspec.json.encode(going.needs, order="sorted")] -= 1
        return going

    def _not_run(self, going: Going, outcome: Outcome, how: str) -> Ended:
        now = attempting.now()
        seconds = time.monotonic() - going.started
        lost = seconds if outcome is Outcome.LOST else 0.0
        return Ended(going.task.cell, Attempt(going.task.number, outcome, how, now, lost))

    def _given_up(self) -> list[Ended]:
        """Those that wait for nodes which have been away for too long."""
        now = time.monotonic()
        if now < self.looked + LOOK:
            return []
        self.looked = now
        self.nodes = _alive()
        ended = []
        for run, going in list(self.going.items()):
            shape = msgspec.json.encode(going.needs, order="sorted")
            why = shapes.lacking(going.needs, self.nodes)
            if not why:
                self.away.pop(shape, None)
            elif now > self.away.setdefault(shape, now) + self.gone:
                self._forget(run)
                ray.cancel(run, force=True)
                ended.append(self._not_run(going, Outcome.NOT_READY, f"{why} any more"))
        return ended

    def stop(self) -> None:
        for run in self.going:
            # It may have ended this moment, or its worker may be gone.
            with contextlib.suppress(ray.exceptions.RayError):
                ray.cancel(run, force=True)
        self.going.clear()
        self.waits.clear()

    def close(self) -> None:
        ray.shutdown()


def _alive() -> list[dict[str, float]]:
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [dict(node["Resources"]) for node in nodes if node["Alive"]]


def _answers(address: str) -> None:
    """Whether anybody listens there, before Ray waits for it for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return  # 'auto', which Ray knows by itself
    try:
        socket.create_connection((host, int(port)), PATIENCE).close()
    except OSError as error:
        raise NotReady(_no_cluster(address, str(error))) from error


def _no_cluster(address: str | None, why: str) -> str:
    asked = "an own Ray cluster could not be started" if address in (None, "local") else ""
    asked = asked or f"no Ray cluster answers at {address}"
    return (
        f"{asked}: {why}; start one with `ray start --head`, name it with --address HOST:PORT, "
        "or leave --on ray out"
    )


def _own_fault(error: ray.exceptions.RayTaskError) -> tuple[Outcome, str]:
    cause = error.cause
    # Without our package a worker cannot even read what it is to run: Ray tells that in words.
    last = _first_line(error, last=True)
    if isinstance(cause, ImportError) or last.startswith(MISSING):
        why = last.removeprefix(MISSING).strip(": ") or str(cause)
        return Outcome.NOT_READY, f"the node lacks unfix ({why}): install it there, or use --ship"
    if isinstance(cause, OSError):
        return Outcome.NOT_READY, f"the node could not run it: {cause}"
    return Outcome.ERROR, f"unfix itself failed on the node: {_first_line(error, last=True)}"


def _first_line(error: BaseException, last: bool = False) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1 if last else 0]
