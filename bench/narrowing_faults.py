"""Draws the faults that `narrowing.py` judges: from all that the operators make in a release."""

from __future__ import annotations

import ast
import random
import sys
from dataclasses import dataclass
from pathlib import Path

NARROW = "narrow-int64"
SIZES = ("shrink-buffer", "drop-size-factor", "round-down", "widen-mask", "off-by-one")


@dataclass(frozen=True, slots=True)
class Fault:
    module: str
    kernel: str
    line: int
    start: int  # the first character in the module's text
    end: int
    after: str
    words: str
    operator: str = NARROW


def draw_faults(place: Path, many: int, sizes: bool) -> list[Fault]:
    from harness.core.source_scopes import ModuleSource
    from harness.runs.audit.release_files import iterate_sources
    from harness.runs.mutate import operators
    from harness.runs.mutate.function_code import ModuleCode

    chosen = [operators.load_operators()[name] for name in (SIZES if sizes else (NARROW,))]

    faults = []
    for path, content in iterate_sources(place):
        text = content.decode()
        if "triton" not in text or not (sizes or "int64" in text):
            continue
        module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for function in ModuleCode(ModuleSource(module, path, text)).functions:
            if not function.is_kernel and not (sizes and _launches_kernel(function.node)):
                continue
            for operator in chosen:
                for change in operator.iterate_changes(function):
                    line = text.count("\n", 0, change.start) + 1
                    faults.append(
                        Fault(
                            module, function.qualname, line, change.start, change.end,
                            change.replacement, change.description, operator.name,
                        )
                    )  # fmt: skip
    print(f"{len(faults)} faults can be made", file=sys.stderr)
    return random.Random(0).sample(faults, min(many, len(faults)))


def _launches_kernel(node: ast.AST) -> bool:
    calls = (one for one in ast.walk(node) if isinstance(one, ast.Call))
    return any(isinstance(one.func, ast.Subscript) for one in calls)
