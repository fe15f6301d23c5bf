"""What the benches share: the option `--record`, records, calls of `unfix`, times of calls."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness.cli import run_output
from harness.core import machine
from harness.store.record_files import read_record_text, write_record


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Make a parser that has `--record FILE`; its description is the first paragraph."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n\n")[0])
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the result there")
    return parser


def read_record(file: Path) -> Any:
    return json.loads(read_record_text(file))


def record_result(
    result: dict[str, Any], file: Path | None, *, python: str = sys.executable, say: bool = True
) -> None:
    """Print the result with the machine and the command, and record it in a file."""
    whole = {
        "machine": machine.collect_machine_facts(python),
        "command": ["python", *sys.argv],
        **result,
    }
    text = json.dumps(whole, indent=1, ensure_ascii=False)
    if say:
        print(text)
    if file is not None:
        write_record(file, run_output.hide_local_paths(text) + "\n")


def run_unfix(
    words: Sequence[str],
    *,
    program: Sequence[str] = (sys.executable, "-m", "harness"),
    **options: Any,
) -> tuple[float, dict[str, Any]]:
    """Run a command of unfix that prints JSON; return its seconds, start included, and its result.

    Ends this process with the command's message if it did not come to a verdict.
    """
    began = time.perf_counter()
    done = subprocess.run(
        [*program, *words], capture_output=True, text=True, check=False, **options
    )
    seconds = time.perf_counter() - began
    if done.returncode not in (0, 1):
        raise SystemExit(done.stderr)
    return seconds, json.loads(done.stdout)


def time_call(work: Callable[[], Any]) -> float:
    """Return the seconds that a call takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
