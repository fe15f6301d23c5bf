"""Runs cells on this machine, as many at a time as its CPUs and GPUs allow."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec

from harness.core import machine
from harness.matrices.schema import MachineNeeds
from harness.runs.matrix import cell_attempt
from harness.runs.matrix.cell_attempt import CellTask
from harness.runs.matrix.cell_scheduler import CellExecutor, FinishedAttempt
from harness.store.matrix.values import CellAttempt


class MachineDevices(msgspec.Struct, frozen=True):
    """The resources of this machine."""

    cpus: float
    gpus: list[str] = []  # names as in CUDA_VISIBLE_DEVICES
    kind: str = ""
    npus: int = 0


def detect_devices() -> MachineDevices:
    kind = machine.describe_gpus()
    count = len(kind.split("; ")) if kind else 0
    names = [str(number) for number in range(count)]
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        names = [name for name in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if name]
    npus = len(list(Path("/dev").glob("davinci[0-9]*")))
    return MachineDevices(len(os.sched_getaffinity(0)), names, kind, npus)


class LocalExecutor(CellExecutor):
    """One thread for each running cell."""

    def __init__(
        self, jobs: int | None = None, machine_devices: MachineDevices | None = None
    ) -> None:
        super().__init__()
        devices = self.devices = machine_devices or detect_devices()
        self.jobs = jobs or max(1, int(devices.cpus))
        self.cpus = max(devices.cpus, self.jobs)  # --jobs may ask for more cells than CPUs
        self.free_gpus = dict.fromkeys(devices.gpus, 1.0)  # the free share of each GPU
        self.free_npus = float(devices.npus)
        self.running: dict[
            Future[CellAttempt], tuple[CellTask, MachineNeeds, list[tuple[str, float]]]
        ] = {}
        self.stop_requested = threading.Event()
        self.thread_pool = ThreadPoolExecutor(self.jobs, thread_name_prefix="cell")

    def describe_shortage(self, needs: MachineNeeds) -> str:
        if needs.cpus > self.cpus:
            return f"this machine has {self.cpus:g} CPUs, and it needs {needs.cpus:g}"
        gpus = len(self.devices.gpus)
        if needs.gpus > gpus:
            return f"this machine has {gpus} GPUs, and it needs {needs.gpus:g}"
        if needs.gpus and needs.gpu.lower() not in self.devices.kind.lower():
            return f"this machine has no GPU of the kind {needs.gpu}: {self.devices.kind}"
        for name, count in needs.custom.items():
            available = self.devices.npus if name.lower() == "npu" else 0
            if count > available:
                return f"this machine has {available:g} {name}, and it needs {count:g}"
        return ""

    def has_room(self, needs: MachineNeeds) -> bool:
        cpus = sum(running.cpus for _, running, _ in self.running.values())
        return (
            len(self.running) < self.jobs
            and cpus + needs.cpus <= self.cpus
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
        run.add_done_callback(lambda _: self.report_finished())

    def _choose_gpus(self, gpus: float) -> list[tuple[str, float]] | None:
        """Choose whole GPUs, or a share of the fullest GPU with room; None: not now."""
        if gpus < 1:
            fitting = [name for name, free in self.free_gpus.items() if free >= gpus > 0]
            fullest = min(fitting, key=lambda name: self.free_gpus[name], default=None)
            if not gpus:
                return []
            return None if fullest is None else [(fullest, gpus)]
        idle = [name for name, free in self.free_gpus.items() if free == 1.0]
        return [(name, 1.0) for name in idle[: int(gpus)]] if len(idle) >= gpus else None

    def collect_finished(self) -> list[FinishedAttempt]:
        done = [run for run in self.running if run.done()]
        finished: list[FinishedAttempt] = []
        # Finished attempts are returned before a supervisor's error ends the run, in the next turn.
        for run in sorted(done, key=lambda future: future.exception() is not None):
            if finished and run.exception() is not None:
                break
            task, needs, chosen = self.running.pop(run)
            for name, share in chosen:
                self.free_gpus[name] += share
            self.free_npus += _count_npus(needs)
            finished.append(FinishedAttempt(task.cell_id, run.result()))
        return finished

    def stop(self) -> None:
        self.stop_requested.set()
        self.thread_pool.shutdown(wait=True, cancel_futures=True)

    def close(self) -> None:
        self.stop()
        super().close()


def _count_npus(needs: MachineNeeds) -> float:
    return sum(count for name, count in needs.custom.items() if name.lower() == "npu")
