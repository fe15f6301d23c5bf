"""Operators for cosmic-ray: each is one fault that a file names, at the one place where it is.

GIVEN_FAULTS in the environment is a list of them as JSON: `id`, and two files, the module as it is
and with the fault.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import parso
from cosmic_ray.operators.operator import Operator


class Given(Operator):
    """One fault; the whole module is the node that it changes."""

    fault: dict[str, Any]

    def mutation_positions(self, node: Any) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
        if node.type == "file_input" and node.get_code() == self.text():
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        return parso.parse(Path(self.fault["mutant"]).read_text())

    def text(self) -> str:
        return Path(self.fault["original"]).read_text()

    @classmethod
    def examples(cls) -> tuple[()]:
        return ()


class Provider:
    """All of them, by their ids."""

    def __init__(self) -> None:
        file = os.environ.get("GIVEN_FAULTS")
        found = json.loads(Path(file).read_text()) if file else []
        self.faults = {fault["id"]: fault for fault in found}

    def __iter__(self) -> Iterator[str]:
        return iter(self.faults)

    def __getitem__(self, name: str) -> type[Given]:
        return type(f"Fault{name}", (Given,), {"fault": self.faults[name]})
