"""The operators, one file each; a new file here is a new operator."""

from __future__ import annotations

import importlib
import pkgutil
from functools import lru_cache

from harness.runs.mutate.mutation_operator import MutationOperator


@lru_cache(maxsize=1)
def load_operators() -> dict[str, MutationOperator]:
    """Load every operator by name. If two make the same change, the first one's counts."""
    loaded: dict[str, MutationOperator] = {}
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda info: info.name):
        module = importlib.import_module(f"{__name__}.{info.name}")
        name = info.name.replace("_", "-")
        loaded[name] = MutationOperator(
            name,
            module.TITLE,
            module.PRS,
            module.SYMPTOM,
            getattr(module, "find_changes", None),
            getattr(module, "find_cpp_changes", None),
        )
    return loaded
