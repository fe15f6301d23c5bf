"""Prints the result of a bench with the machine and the command, and records it in a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from harness.cli import run_output
from harness.core import machine
from harness.store.record_files import write_record


def record_result(
    result: dict[str, Any], file: Path | None, *, python: str = sys.executable, say: bool = True
) -> None:
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
