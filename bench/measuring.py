"""What cases share: their result, records of earlier runs, timed calls, and calls of `unfix`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.core import paths
from harness.store.record_files import read_record_text

RECORDED = paths.project_folder() / "bench" / "recorded"


@dataclass(frozen=True)
class Result:
    """What a case has measured so far."""

    values: dict[str, Any]
    is_good: bool = True
    summary: dict[str, Any] = field(default_factory=dict)  # printed in place of all values
    python: str = sys.executable  # the interpreter whose packages the record names


def read_record(file: Path) -> Any:
    return json.loads(read_record_text(file))


def time_call(work: Callable[[], Any]) -> float:
    """Return the seconds that a call takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def run_unfix(
    words: Sequence[str],
    *,
    program: Sequence[str] = (sys.executable, "-m", "harness"),
    **options: Any,
) -> dict[str, Any]:
    """Run a command of unfix that prints JSON, and return its result.

    Ends this process with the command's message if the command did not come to a verdict.
    """
    done = subprocess.run(
        [*program, *words], capture_output=True, text=True, check=False, **options
    )
    if done.returncode not in (0, 1):
        raise SystemExit(done.stderr)
    result: dict[str, Any] = json.loads(done.stdout)
    return result
