"""Faults of small functions that are written in the test."""

from __future__ import annotations

import difflib
import textwrap

from memory import Memory

from harness.mutate import operators
from harness.mutate.making import make
from harness.registry.schema import Target
from harness.store.mutate.faults import Fault, Made


def made(code: str, *names: str, lines: set[int] | None = None) -> Made:
    """What the operators of these names, or all of them, make of module `m`."""
    chosen = [operators.all()[name] for name in names] if names else None
    only = None if lines is None else {"m": lines}
    return make([Target("m", "")], Memory({"m": text(code)}), chosen, only)


def text(code: str) -> str:
    return textwrap.dedent(code).lstrip("\n")


def changed(code: str, *names: str) -> list[str]:
    """The lines that each fault puts in the place of others, fault by fault."""
    return [put(text(code), fault) for fault in made(code, *names).faults]


def put(before: str, fault: Fault) -> str:
    after = fault.applied(before)
    told = difflib.ndiff(before.split("\n"), after.split("\n"))
    return "\n".join(line[2:].strip() for line in told if line.startswith("+ "))
