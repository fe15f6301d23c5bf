"""Cells on this machine, as many at a time as it has CPUs and GPUs for."""

from __future__ import annotations

import os
import threading
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

import msgspec

from harness.core import machine
from harness.runs.matrix import cell_attempt
from harness.runs.matrix.cell_attempt import CellTask
from harness.runs.matrix.cell_plan import MachineNeeds
from harness.runs.matrix.cell_scheduler import FinishedAttempt
from harness.store.matrix.values import CellAttempt


class MachineDevices(msgspec.Struct, frozen=True):
    """What this machine has."""

    cpus: float
    gpus: list[str] = []  # by the names that CUDA_VISIBLE_DEVICES takes
    kind: str = ""
    npus: int = 0


def detect_devices() -> MachineDevices:
    told = machine.describe_gpus()
    count = len(told.split("; ")) if told else 0
    names = [str(number) for number in range(count)]
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        names = [name for name in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if name]
    npus = len(list(Path("/dev").glob("davinci[0-9]*")))
    return MachineDevices(len(os.sched_getaffinity(0)), names, told, npus)


class LocalExecutor:
    """An executor: a thread for each cell that runs, which looks after its process."""

    def __init__(
        self, jobs: int | None = None, machine_devices: MachineDevices | None = None
    ) -> None:
        self.machine_devices = machine_devices or detect_devices()
        self.jobs = jobs or max(1, int(self.machine_devices.cpus))
        self.cpus = max(
            self.machine_devices.cpus, self.jobs
        )  # more at a time than CPUs, if it is asked for
        self.free_gpus = dict.fromkeys(
            self.machine_devices.gpus, 1.0
        )  # of each GPU, what nobody holds
        self.free_npus = float(self.machine_devices.npus)
        self.running: dict[
            Future[CellAttempt], tuple[CellTask, MachineNeeds, list[tuple[str, float]]]
        ] = {}
        self.stop_requested = threading.Event()
        self.thread_pool = ThreadPoolExecutor(self.jobs, thread_name_prefix="cell")

    def describe_shortage(self, needs: MachineNeeds) -> str:
        if needs.cpus > self.cpus:
            return f"this machine has {self.cpus:g} CPUs, and it needs {needs.cpus:g}"
        if needs.gpus > len(self.machine_devices.gpus):
            return f"this machine has {len(self.machine_devices.gpus)} GPUs, and it needs {needs.gpus:g}"
        if needs.gpus and needs.gpu.lower() not in self.machine_devices.kind.lower():
            return f"this machine has no GPU of the kind {needs.gpu}: {self.machine_devices.kind}"
        for name, count in needs.custom.items():
            has = self.machine_devices.npus if name.lower() == "npu" else 0
            if count > has:
                return f"this machine has {has:g} {name}, and it needs {count:g}"
        return ""

    def has_room(self, needs: MachineNeeds) -> bool:
        held = sum(other.cpus for _, other, _ in self.running.values())
        return (
            len(self.running) < self.jobs
            and held + needs.cpus <= self.cpus
            and _count_npus(needs) <= self.free_npus
            and self._choose_gpus(needs.gpus) is not None
        )

    def start(self, task: CellTask, needs: MachineNeeds) -> None:
        chosen = self._choose_gpus(needs.gpus) or []
        for name, share in chosen:
            self.free_gpus[name] -= share
        self.free_npus -= _count_npus(needs)
        if chosen:
            visible = {"CUDA_VISIBLE_DEVICES": ",".join(name for name, _ in chosen)}
            task = msgspec.structs.replace(task, environment=visible | task.environment)
        run = self.thread_pool.submit(
            cell_attempt.run_attempt, task, Path(task.log_folder), self.stop_requested
        )
        self.running[run] = task, needs, chosen

    def _choose_gpus(self, gpus: float) -> list[tuple[str, float]] | None:
        """Whole GPUs, or a share of the fullest one that has it left; None: not now."""
        if gpus < 1:
            fitting = [name for name, free in self.free_gpus.items() if free >= gpus > 0]
            fullest = min(fitting, key=lambda name: self.free_gpus[name], default=None)
            if not gpus:
                return []
            return None if fullest is None else [(fullest, gpus)]
        idle = [name for name, free in self.free_gpus.items() if free == 1.0]
        return [(name, 1.0) for name in idle[: int(gpus)]] if len(idle) >= gpus else None

    def wait(self, seconds: float) -> list[FinishedAttempt]:
        done, _ = wait(self.running, seconds, FIRST_COMPLETED)
        ended: list[FinishedAttempt] = []
        # What came to an end is told before what could not be looked after ends the run.
        for run in sorted(done, key=lambda one: one.exception() is not None):
            if ended and run.exception() is not None:
                break
            task, needs, chosen = self.running.pop(run)
            for name, share in chosen:
                self.free_gpus[name] += share
            self.free_npus += _count_npus(needs)
            ended.append(FinishedAttempt(task.cell_id, run.result()))
        return ended

    def stop(self) -> None:
        self.stop_requested.set()
        self.thread_pool.shutdown(wait=True, cancel_futures=True)

    def close(self) -> None:
        self.stop()


def _count_npus(needs: MachineNeeds) -> float:
    return sum(count for name, count in needs.custom.items() if name.lower() == "npu")
