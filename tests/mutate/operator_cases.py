"""For each operator, code of its kind and the faults that it makes there."""

from __future__ import annotations

from pathlib import Path

import yaml


def read_cases(name: str) -> list[tuple[str, str, list[str]]]:
    """Return an operator, code, and the lines that its faults write there, for each case."""
    cases = yaml.safe_load((Path(__file__).parent / name).read_text(encoding="utf-8"))
    return [(case["operator"], case["code"], case["faults"]) for case in cases]
