"""A release of three functions, guards over it, and handwritten faults for the whole command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import forked
from calling import list_living_processes, wait_until

from harness.core import paths
from harness.runs.mutate import guard_order, kill_confirmation
from harness.store.database import Store
from harness.store.mutate.faults import MutationFault, compute_fault_id
from harness.store.mutate.table import MutationTable
from harness.store.mutate.values import MutationRun

MODULE = "sglang.srt.sizes"
HANGS = "__import__('time').sleep(600)\n    "
CODE = '''
"""What the guards are about."""

import functools

ROOM = 7


def width(rows, topk):
    """Room for every row."""
    return rows * topk


@functools.lru_cache(maxsize=4)
def total(count):
    found = 0
    for index in range(count):
        found += index
    return found


def chosen(flag):
    if flag:
        return 1
    return 2


def unread(rows):
    return rows + ROOM
'''
GUARDS = """
import pytest
from hypothesis import given, strategies as st
from sglang.srt import sizes

@given(st.integers(1, 5), st.integers(1, 5))
def test_width(rows, topk):
    assert sizes.width(rows, topk) >= rows * topk

def test_total():
    assert sizes.total(4) == 6

def test_flag():
    sizes.chosen(True)
"""
# The command itself; only the faults, the known equivalents and the limits come from the test.
DRIVER = """
import json, os, sys
import msgspec
from harness.cli import main
from harness.core import device
from harness.runs.mutate import (
    equivalent_faults, fault_selection, guard_order, kill_confirmation
)
from harness.store.mutate.faults import GeneratedFaults, MutationFault
faults = msgspec.convert(json.loads(os.environ["FAULTS"]), tuple[MutationFault, ...])
if faults:
    fault_selection.make_faults = lambda *_: GeneratedFaults(faults, ())
fault_selection.WIDE_DIFF_MODULES = int(os.environ.get("WIDE", fault_selection.WIDE_DIFF_MODULES))
if families := json.loads(os.environ.get("FAMILIES", "{}")):
    fault_selection.find_families = lambda *_: families
limits = json.loads(os.environ["LIMITS"])
guard_order.MIN_LIMIT_SECONDS, kill_confirmation.SLOW_RETRY_LIMITS = limits
equivalents = json.loads(os.environ["EQUALS"])
equivalent_faults.read_equivalent_faults = lambda *_: {
    name: equivalent_faults.EquivalentFault(name, "sglang.srt.sizes", "hand", "a => b", reason)
    for name, reason in equivalents.items()
}
if os.environ.get("SHARES"):  # as on a GPU
    device.shares_processes = lambda _: True
sys.exit(main.main(sys.argv[1:]))
"""


class Mutate:
    """`unfix mutate` over a small release, with a store of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.package = root / "release" / "sglang"
        (self.package / "srt").mkdir(parents=True)
        (self.package / "__init__.py").write_text("")
        (self.package / "version.py").write_text('__version__ = "0.5.99"\n')
        (self.package / "srt" / "__init__.py").write_text("")
        self.file = self.package / "srt" / "sizes.py"
        self.file.write_text(CODE)
        (root / "guards").mkdir()
        self.guards = root / "guards" / "test_sizes.py"
        self.guards.write_text(GUARDS)
        (root / "driver.py").write_text(DRIVER)
        self.equals: dict[str, str] = {}
        self.faults: list[MutationFault] = []
        self.patience = (guard_order.MIN_LIMIT_SECONDS, kill_confirmation.SLOW_RETRY_LIMITS)

    def fault(self, qualname: str, before: str, after: str) -> MutationFault:
        """Add a fault to the next run, at the first such place after the function's name."""
        start = CODE.index(before, CODE.index(f"def {qualname}("))
        line = CODE.count("\n", 0, start) + 1
        fault = MutationFault(
            id=compute_fault_id("hand", MODULE, qualname, before, after),
            operator="hand",
            module=MODULE,
            qualname=qualname,
            path=str(self.file),
            kernel=False,
            start=start,
            end=start + len(before),
            line=line,
            first=line,
            last=line + before.count("\n"),
            before=before,
            after=after,
            words=f"{before} becomes {after}",
        )
        self.faults.append(fault)
        return fault

    @property
    def environment(self) -> dict[str, str]:
        found_by = os.pathsep.join((str(paths.project_folder()), str(self.package.parent)))
        return {
            **os.environ,
            "UNFIX_HOME": str(self.root),
            "PYTHONPATH": found_by,
            "FAULTS": json.dumps([vars_of(fault) for fault in self.faults]),
            "EQUALS": json.dumps(self.equals),
            "LIMITS": json.dumps(self.patience),
        }

    def command(self, *words: str) -> list[str]:
        options = ["mutate", "--release", "current", "--suite", str(self.guards.parent), "-j", "1"]
        return [sys.executable, str(self.root / "driver.py"), *options, *words]

    def call(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Call the command in the folder of a release's checkout."""
        environment = {**self.environment, **more}
        return forked.run_unfix(self.command(*words), self.package.parent, environment)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start the command in the background."""
        return subprocess.Popen(
            self.command(*words),
            cwd=self.package.parent,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def add_interrupted_faults(self) -> list[str]:
        """Add three faults, of which the second hangs, so that a run can be killed at it."""
        faults = [
            self.fault("width", "rows * topk", "rows"),
            self.fault("width", "return rows", HANGS + "return rows"),
            self.fault("total", "range(count)", "range(count - 1)"),
        ]
        self.patience = (2.0, (4.0, 2.0))
        return [fault.id for fault in faults]

    def kill_run(self, *words: str) -> MutationRun:
        """Kill a run as soon as its first fault has a result."""
        running = self.start(*words)
        self.wait_for_fates(1)
        running.kill()
        running.communicate()
        assert self.has_ended()
        return self.load_newest()

    def load_newest(self) -> MutationRun:
        store = Store(self.root / ".unfix" / "runs.sqlite")
        newest = load_newest_run(store)
        store.close()
        assert newest is not None
        return newest

    def wait_for_fates(self, count: int) -> None:
        file = self.root / ".unfix" / "runs.sqlite"

        def has_fates() -> bool:
            if not file.exists() or not file.stat().st_size:
                return False
            store = Store(file)
            newest = load_newest_run(store)
            store.close()
            return newest is not None and len(newest.fates) >= count

        wait_until(has_fates)

    def has_ended(self) -> bool:
        """Wait until every process of a run has ended."""
        return wait_until(lambda: not list_living_processes(self.root))

    def run(self, *words: str, **more: str) -> dict[str, Any]:
        """Run to the end; return the run as data, with the exit code as `code`."""
        done = self.call("--json", *words, **more)
        assert done.stdout, done.stderr
        return {**json.loads(done.stdout), "code": done.returncode, "stderr": done.stderr}

    def fates(self, *words: str) -> dict[str, dict[str, Any]]:
        """Return the result of each fault, by its id."""
        return by_id(self.run(*words))


def by_id(run: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {fated["fault"]["id"]: fated for fated in run["fates"]}


def vars_of(fault: MutationFault) -> dict[str, Any]:
    return {name: getattr(fault, name) for name in fault.__struct_fields__}


def load_newest_run(store: Store) -> MutationRun | None:
    runs = MutationTable(store).list_runs()
    return MutationTable(store).load_whole(runs[-1]) if runs else None


def read_sources(mutate: Mutate) -> dict[str, str]:
    return {
        str(file.relative_to(mutate.package)): file.read_text()
        for file in sorted(mutate.package.rglob("*.py"))
    }
