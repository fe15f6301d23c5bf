"""From how a cell's process ended to an outcome, and what its log says."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from harness import processes
from harness.store.matrix.values import Outcome

BY_CODE = {0: Outcome.GREEN, 1: Outcome.RED, 2: Outcome.ERROR, 3: Outcome.NOT_READY}
TAIL = 4000  # bytes of a log that are kept with an outcome
LARGEST = 64 << 20  # bytes of a log in which counts are looked for
_DEATHS_OF_SHELLS = 128  # a shell ends with this and the number of the signal


def judged(seen: dict[str, Any], limit: float) -> tuple[Outcome, str]:
    """What a supervisor saw, as an outcome and in words."""
    if seen["how"] == "missing":
        return Outcome.NOT_READY, f"its command is not here: {seen['error']}"
    if seen["how"] == "hang":
        return Outcome.HANG, f"ran past its limit of {limit:g} s"
    code = int(seen["code"])
    if code < 0:
        return Outcome.CRASH, processes.signal_name(-code)
    if code > _DEATHS_OF_SHELLS and (name := _signal(code - _DEATHS_OF_SHELLS)):
        return Outcome.CRASH, f"exit code {code}: {name} below a shell"
    return BY_CODE.get(code, Outcome.ERROR), f"exit code {code}"


def _signal(number: int) -> str:
    """Those that a program dies of; 130 and 143 are a stop, which is an error here."""
    name = processes.signal_name(number)
    return name if name in ("SIGSEGV", "SIGABRT", "SIGKILL", "SIGBUS", "SIGILL", "SIGFPE") else ""


def printed(log: Path) -> dict[str, Any] | None:
    """The object that a command's --json printed last; None if there is none that is whole."""
    if log.stat().st_size > LARGEST:
        return None
    lines = log.read_text(errors="replace").splitlines()
    ends = [place for place, line in enumerate(lines) if line == "}"]
    begins = [place for place, line in enumerate(lines) if line == "{"]
    if not ends or not begins:
        return None
    try:
        found = json.loads("\n".join(lines[begins[-1] : ends[-1] + 1]))
    except ValueError:
        return None  # something else was printed in between: there are no counts to add
    return found if isinstance(found, dict) else None


def inside(found: dict[str, Any]) -> dict[str, int]:
    """Its cells by verdict, as a proof counts them or as an evaluation lists them."""
    counts = found.get("counts")
    if isinstance(counts, dict):
        return {str(word): number for word, number in counts.items() if isinstance(number, int)}
    compared = found.get("compared")
    if isinstance(compared, list):
        told = [one.get("verdict") for one in compared if isinstance(one, dict)]
        return dict(Counter(str(word) for word in told if word))
    return {}


def contradicted(outcome: Outcome, found: dict[str, Any]) -> bool:
    """Whether a command ended well and yet printed that it is not green."""
    return outcome is Outcome.GREEN and found.get("green") is False
