"""`unfix matrix run` over a handwritten plan: its file is the plan itself as JSON.

Also a program, so that a test can kill it: `python driving.py FILE [OPTIONS]`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.cli.matrix import execution
from harness.core.errors import UnfixError
from harness.matrices.schema import MachineNeeds
from harness.runs.matrix import plan_builder, shards
from harness.runs.matrix.cell_plan import MatrixCell, MatrixPlan, PlanShard
from harness.store.database import Store
from harness.store.matrix.table import MatrixTable
from harness.store.matrix.values import MatrixRun

# It closes Ray's own processes and sockets, not always before Python checks for them.
RAY_WARNINGS = [
    pytest.mark.filterwarnings(f"ignore::{name}")
    for name in ("ResourceWarning", "pytest.PytestUnraisableExceptionWarning", "FutureWarning")
]


def make_cell(
    name: str, script: str, *, limit: float = 30.0, command: Any = None, **needs: Any
) -> MatrixCell:
    """Return a cell of a shell script, or of a command; its identity is its name."""
    values = {"name": name, "kv": "fp8" if len(name) % 2 else "auto"}
    command, needed = command or ["sh", "-c", script], MachineNeeds(**needs)
    return MatrixCell(name, values, "work", command, {}, needed, limit, "covering")


def make_plan(*cells: MatrixCell, digest: str = "digest-1") -> MatrixPlan:
    axes = {"name": [one.identity for one in cells], "kv": ["auto", "fp8"]}
    return MatrixPlan("tried", digest, axes, list(cells), [], [], 0.0)


def _read_plan(file: Path, seconds: Mapping[str, float]) -> MatrixPlan:
    return msgspec.json.decode(file.read_bytes(), type=MatrixPlan)


def _deal_shard(planned: MatrixPlan, costs: Mapping[str, float], number: int, of: int) -> PlanShard:
    cells = [cell.identity for cell in planned.cells[number - 1 :: of]]
    return PlanShard(planned.digest, number, of, cells, 0.0)


def replace_planning(patch: Callable[[object, str, object], None] = setattr) -> None:
    """Read plans from JSON, and deal cells out to shards one by one."""
    patch(plan_builder, "plan_matrix", _read_plan)
    patch(shards, "select_shard", _deal_shard)


def call_matrix(words: list[str]) -> int:
    parser = argparse.ArgumentParser()
    execution.add_arguments(parser)
    return execution.run_matrix(parser.parse_args(words))


class Drive:
    """Runs plans in a workspace of the test's own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.file = root / "plan.json"

    def write(self, *cells: MatrixCell, digest: str = "digest-1") -> None:
        self.file.write_bytes(msgspec.json.encode(make_plan(*cells, digest=digest)))

    def run(self, *words: str) -> int:
        """Run in this process; return the exit code."""
        return call_matrix([str(self.file), "-j", "2", *words])

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a process of its own."""
        environment = {**os.environ, "UNFIX_HOME": str(self.root)}
        command = [sys.executable, __file__, str(self.file), "-j", "2", *words]
        return subprocess.Popen(command, env=environment, cwd=self.root, stderr=subprocess.PIPE)

    @property
    def store(self) -> Store:
        return Store(self.root / ".unfix" / "runs.sqlite")

    def newest(self) -> MatrixRun:
        store = self.store
        try:
            return MatrixTable(store).load_whole(MatrixTable(store).list_runs()[-1])
        finally:
            store.close()

    def words(self) -> dict[str, str]:
        return {one.identity: one.outcome_word for one in self.newest().cells}

    def times(self, name: str) -> int:
        """Return how often a cell ran that logs it by `ran NAME`."""
        file = self.root / f"{name}.ran"
        return len(file.read_text()) if file.exists() else 0

    def marks(self, name: str) -> str:
        return f"printf x >> {self.root / name}.ran"

    def flag(self, name: str) -> Path:
        return self.root / f"{name}.flag"


if __name__ == "__main__":
    replace_planning()
    try:
        sys.exit(call_matrix(sys.argv[1:]))
    except UnfixError as error:
        print(f"unfix: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
