"""Cells on this machine, as many at a time as it has CPUs and GPUs for."""

from __future__ import annotations

import os
import threading
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

import msgspec

from harness import machine
from harness.matrix import attempting
from harness.matrix.attempting import Task
from harness.matrix.running import Ended
from harness.matrix.values import Needs
from harness.store.matrix.values import Attempt


class Devices(msgspec.Struct, frozen=True):
    """What this machine has."""

    cpus: float
    gpus: list[str] = []  # by the names that CUDA_VISIBLE_DEVICES takes
    kind: str = ""
    npus: int = 0


def devices() -> Devices:
    told = machine.gpu()
    count = len(told.split("; ")) if told else 0
    names = [str(number) for number in range(count)]
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        names = [name for name in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if name]
    npus = len(list(Path("/dev").glob("davinci[0-9]*")))
    return Devices(len(os.sched_getaffinity(0)), names, told, npus)


class Local:
    """An executor: a thread for each cell that runs, which looks after its process."""

    def __init__(self, jobs: int | None = None, has: Devices | None = None) -> None:
        self.has = has or devices()
        self.jobs = jobs or max(1, int(self.has.cpus))
        self.cpus = max(self.has.cpus, self.jobs)  # more at a time than CPUs, if it is asked for
        self.free = dict.fromkeys(self.has.gpus, 1.0)  # of each GPU, what nobody holds
        self.npus_free = float(self.has.npus)
        self.going: dict[Future[Attempt], tuple[Task, Needs, list[tuple[str, float]]]] = {}
        self.over = threading.Event()
        self.pool = ThreadPoolExecutor(self.jobs, thread_name_prefix="cell")

    def lacking(self, needs: Needs) -> str:
        if needs.cpus > self.cpus:
            return f"this machine has {self.cpus:g} CPUs, and it needs {needs.cpus:g}"
        if needs.gpus > len(self.has.gpus):
            return f"this machine has {len(self.has.gpus)} GPUs, and it needs {needs.gpus:g}"
        if needs.gpus and needs.gpu.lower() not in self.has.kind.lower():
            return f"this machine has no GPU of the kind {needs.gpu}: {self.has.kind}"
        for name, count in needs.custom.items():
            has = self.has.npus if name.lower() == "npu" else 0
            if count > has:
                return f"this machine has {has:g} {name}, and it needs {count:g}"
        return ""

    def room(self, needs: Needs) -> bool:
        held = sum(other.cpus for _, other, _ in self.going.values())
        return (
            len(self.going) < self.jobs
            and held + needs.cpus <= self.cpus
            and _npus(needs) <= self.npus_free
            and self._choose(needs.gpus) is not None
        )

    def start(self, task: Task, needs: Needs) -> None:
        chosen = self._choose(needs.gpus) or []
        for name, share in chosen:
            self.free[name] -= share
        self.npus_free -= _npus(needs)
        if chosen:
            visible = {"CUDA_VISIBLE_DEVICES": ",".join(name for name, _ in chosen)}
            task = msgspec.structs.replace(task, environment=visible | task.environment)
        run = self.pool.submit(attempting.attempt, task, Path(task.folder), self.over)
        self.going[run] = task, needs, chosen

    def _choose(self, wanted: float) -> list[tuple[str, float]] | None:
        """Whole GPUs, or a share of the fullest one that has it left; None: not now."""
        if wanted < 1:
            fitting = [name for name, free in self.free.items() if free >= wanted > 0]
            fullest = min(fitting, key=lambda name: self.free[name], default=None)
            if not wanted:
                return []
            return None if fullest is None else [(fullest, wanted)]
        idle = [name for name, free in self.free.items() if free == 1.0]
        return [(name, 1.0) for name in idle[: int(wanted)]] if len(idle) >= wanted else None

    def wait(self, seconds: float) -> list[Ended]:
        done, _ = wait(self.going, seconds, FIRST_COMPLETED)
        ended: list[Ended] = []
        # What came to an end is told before what could not be looked after ends the run.
        for run in sorted(done, key=lambda one: one.exception() is not None):
            if ended and run.exception() is not None:
                break
            task, needs, chosen = self.going.pop(run)
            for name, share in chosen:
                self.free[name] += share
            self.npus_free += _npus(needs)
            ended.append(Ended(task.cell, run.result()))
        return ended

    def stop(self) -> None:
        self.over.set()
        self.pool.shutdown(wait=True, cancel_futures=True)

    def close(self) -> None:
        self.stop()


def _npus(needs: Needs) -> float:
    return sum(count for name, count in needs.custom.items() if name.lower() == "npu")
