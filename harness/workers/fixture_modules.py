"""Modules of `fixtures`, by their names: how code of the harness gets SGLang's objects.

`fixtures` lies above the harness, so no module here imports it. It alone knows how releases differ;
a kind of run says in a protocol what it needs of an object, and a function there makes one.
"""

from __future__ import annotations

import importlib
from typing import Any


def import_fixture(name: str) -> Any:
    """Import a module of `fixtures`, such as `loaded_model` or `zoo.families.norms`."""
    return importlib.import_module(f"fixtures.{name}")
