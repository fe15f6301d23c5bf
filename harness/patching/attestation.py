"""Attestations: the record of a patched process, with its toggles and how often their code ran.

The counts live in a memory-mapped file, so they survive a SIGKILL, which is how a server ends its
workers. A forked child starts its own file with counts of zero. Example: a parent counts 5 runs
and forks a child that counts 1; the folder holds two attestations, with reach 5 and 1.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.core.files import write_atomically
from harness.core.mapped_counts import MappedCounts, read_counts

MAX_SLOTS = 4096


@dataclass(frozen=True)
class CounterSlot:
    """One counter: the runs of one target under one toggle."""

    toggle: str
    direction: str
    target: str


class AttestationRecorder:
    """Writes the attestation of this process; every change is on disk when the call returns."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.RLock()
        self._slots: list[CounterSlot] = []
        self._count_kinds: dict[int, str] = {}
        self._process_facts: dict[str, Any] = {}
        self._patched_modules: list[str] = []
        self._toggles: list[dict[str, str]] = []
        self._open(forked_from=None)
        os.register_at_fork(after_in_child=self._after_fork)

    @property
    def file(self) -> Path:
        return self._file

    def _open(self, forked_from: int | None) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        pid = os.getpid()
        self._file = self._folder / f"{pid}-{time.time_ns():x}.json"
        self._counts = MappedCounts(self._file.with_suffix(".counts"), MAX_SLOTS)
        self._process_facts.update(
            pid=pid,
            parent=os.getppid(),
            forked_from=forked_from,
            started=time.time(),
            command=list(getattr(sys, "orig_argv", sys.argv)),
            python=sys.executable,
        )

    def set_folder(self, folder: Path) -> None:
        """Set the folder for attestations of processes forked from now on."""
        self._folder = folder

    def begin_again(self, folder: Path) -> None:
        """Begin another attestation of this process: no toggles so far, and counts of zero.

        The counters stay assigned: patched code that is compiled counts by their numbers.
        """
        with self._lock:
            self._folder, self._toggles, self._patched_modules = folder, [], []
            self._open(self._process_facts["forked_from"])
            self._write()

    def _after_fork(self) -> None:
        self._lock = threading.RLock()
        try:
            self._open(forked_from=self._process_facts["pid"])
            self._write()
        except BaseException as error:
            # Python ignores an error in a fork hook; a child without an attestation must not run.
            os.write(2, f"unfix: a forked child cannot write its attestation ({error})\n".encode())
            os._exit(3)

    def record_toggles(self, release: str, toggles: list[dict[str, str]]) -> None:
        """Record toggles as active in this process."""
        with self._lock:
            new = [toggle for toggle in toggles if toggle not in self._toggles]
            if new or self._process_facts.get("release") != release:
                self._process_facts["release"] = release
                self._toggles += new
                self._write()

    def record_module(self, module: str) -> None:
        """Record a module that was loaded with its patched text, or changed live."""
        with self._lock:
            if module not in self._patched_modules:
                self._patched_modules.append(module)
                self._write()

    def assign_slot(self, toggle: str, direction: str, target: str) -> int:
        """Return the counter of a target, which keeps it for the life of the process."""
        with self._lock:
            slot = CounterSlot(toggle, direction, target)
            if slot in self._slots:
                return self._slots.index(slot)
            if len(self._slots) == MAX_SLOTS:
                raise RuntimeError(f"more than {MAX_SLOTS} toggled targets in one process")
            self._slots.append(slot)
            return len(self._slots) - 1

    def record_count_kinds(self, kinds: dict[int, str]) -> None:
        """Record what each counter counts: runs of a statement, kernel launches, or definitions."""
        with self._lock:
            if not kinds.items() <= self._count_kinds.items():
                self._count_kinds.update(kinds)
                self._write()

    def count_run(self, slot: int) -> None:
        with self._lock:
            self._counts.add(slot)

    def list_counts(self) -> list[tuple[CounterSlot, int]]:
        with self._lock:
            return [(slot, self._counts[i]) for i, slot in enumerate(self._slots)]

    def _write(self) -> None:
        data = {
            **self._process_facts,
            "toggles": self._toggles,
            "modules": self._patched_modules,
            "slots": [vars(slot) for slot in self._slots],
            "kinds": [self._count_kinds.get(i, "") for i in range(len(self._slots))],
        }
        write_atomically(self._file, json.dumps(data))


@dataclass(frozen=True)
class Attestation:
    """The attestation of one process, as read from its files."""

    pid: int
    forked_from: int | None
    command: list[str]
    release: str
    toggles: dict[str, str]
    modules: list[str]
    counts: dict[CounterSlot, int]
    kinds: dict[CounterSlot, str]

    def reach(self, toggle: str, direction: str = "") -> int:
        """Return how often a toggle's code ran, in one direction or in any."""
        return sum(
            count
            for slot, count in self.counts.items()
            if slot.toggle == toggle and direction in ("", slot.direction)
        )

    def has_set_constant(self, toggle: str) -> bool:
        """Return whether a module was imported in which a toggle changes a constant.

        Who reads it elsewhere is not counted.
        """
        return any(slot.toggle == toggle and slot.target in self.modules for slot in self.counts)


def list_attestation_files(folder: Path) -> set[Path]:
    return {path for path in folder.glob("*.json") if path.with_suffix(".counts").is_file()}


def read_attestations(folder: Path, ignored_files: Iterable[Path] = ()) -> list[Attestation]:
    """Read the attestations in a folder, in the order in which their processes started."""
    attestations = []
    files = list_attestation_files(folder) - set(ignored_files)
    for path in sorted(files, key=lambda p: p.stem.partition("-")[2]):
        data = json.loads(path.read_text())
        slots = [CounterSlot(**slot) for slot in data["slots"]]
        numbers = read_counts(path.with_suffix(".counts"), len(slots))
        attestations.append(
            Attestation(
                data["pid"],
                data["forked_from"],
                data["command"],
                data.get("release", ""),
                {toggle["id"]: toggle["direction"] for toggle in data["toggles"]},
                data["modules"],
                dict(zip(slots, numbers)),  # noqa: B905 (read by any Python)
                dict(zip(slots, data["kinds"])),  # noqa: B905
            )
        )
    return attestations
