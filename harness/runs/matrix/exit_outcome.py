"""The outcome of a cell, from the exit of its command and the JSON that it printed."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

from harness.core import process_exit
from harness.core.outcomes import Outcome
from harness.workers.command_supervisor import CommandExit

OUTCOME_BY_EXIT_CODE = {
    0: Outcome.PASSED,
    1: Outcome.FAILED,
    2: Outcome.ERROR,
    3: Outcome.NOT_READY,
}
LOG_TAIL_BYTES = 4000  # a log's end, stored with an attempt
MAX_LOG_BYTES = 64 << 20  # the largest log that is searched for JSON


def judge_exit(ended: CommandExit, time_limit: float) -> tuple[Outcome, str]:
    """Judge the outcome of a cell by its command's exit, with a description."""
    if ended.kind is Outcome.NOT_FOUND:
        return Outcome.NOT_READY, f"its command is not here: {ended.detail}"
    if ended.kind is Outcome.HANG:
        return Outcome.HANG, f"ran past its limit of {time_limit:g} s"
    code = -signal.SIGTERM if ended.code is None else ended.code
    words = process_exit.describe_code(code)
    if signal_number := process_exit.find_crash_below_shell(code):
        code = -signal_number
        words = f"{words}: {process_exit.get_signal_name(signal_number)} below a shell"
    if code < 0:
        by_kernel = ended.killed_by_kernel
        return process_exit.describe_exit(code, killed_by_kernel=by_kernel).kind, words
    return OUTCOME_BY_EXIT_CODE.get(code, Outcome.ERROR), words


def read_printed_json(log: Path) -> dict[str, Any] | None:
    """Read the last object that a command's --json printed; None if it is missing or cut."""
    if log.stat().st_size > MAX_LOG_BYTES:
        return None
    lines = log.read_text(errors="replace").splitlines()
    ends = [place for place, line in enumerate(lines) if line == "}"]
    begins = [place for place, line in enumerate(lines) if line == "{"]
    if not ends or not begins:
        return None
    try:
        value = json.loads("\n".join(lines[begins[-1] : ends[-1] + 1]))
    except ValueError:
        return None  # other output is mixed in: the attempt has no counts
    return value if isinstance(value, dict) else None


def count_verdicts(printed_json: dict[str, Any]) -> dict[str, int]:
    """Count cells by verdict, as a proof counts them or an evaluation lists them."""
    counts = printed_json.get("counts")
    if isinstance(counts, dict):
        return {str(word): number for word, number in counts.items() if isinstance(number, int)}
    compared = printed_json.get("compared")
    if isinstance(compared, list):
        verdicts = [one.get("verdict") for one in compared if isinstance(one, dict)]
        return dict(Counter(str(verdict) for verdict in verdicts if verdict))
    return {}


def is_contradicted(outcome: Outcome, printed_json: dict[str, Any]) -> bool:
    """Return whether a command that exited with success printed that it is not green."""
    return outcome is Outcome.PASSED and printed_json.get("green") is False
