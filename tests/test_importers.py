"""Modules that imported a constant by any form of `from`; those with an equal one are left out."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixture_types import Patch

from harness.patching.constant_importers import find_importers

TAKES = {
    "named": "from outer.holding.forms import LIMIT",
    "beside": "from .forms import LIMIT",
    "above": "from ..holding.forms import LIMIT",
    "again": "from . import LIMIT",
    "close": "from .import LIMIT",
    "all": "from outer.holding.forms import *",
    "renamed": "from .forms import LIMIT as MOST",
    "wrapped": "from .forms import (\n    LIMIT,\n)",
    "continued": "from outer.holding.forms \\\n    import LIMIT",
    "inside": "try:\n    pass\nfinally:\n    from .forms import LIMIT",
    "through": "from .named import LIMIT",
}
OWN = {
    "own": "LIMIT = 1",
    "platforms": "LIMIT = 1",
    "other": "from .platforms import LIMIT",
    "spoken": "# from outer.holding.forms import LIMIT, as others do\nLIMIT = 1",
    "whole": "from outer.holding import forms\nLIMIT = 1",
}


@pytest.fixture
def holding(tmp_path: Path, monkeypatch: Patch) -> Iterator[None]:
    # The package is nested, so that two dots lead somewhere.
    folder = tmp_path / "outer" / "holding"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "__init__.py").write_text("from outer.holding.forms import LIMIT")
    (folder / "forms.py").write_text("LIMIT = 1\n")
    for name, words in {**TAKES, **OWN}.items():
        (folder / f"{name}.py").write_text(words)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "outer"]:
        del sys.modules[name]


@pytest.mark.usefixtures("holding")
def test_whoever_takes_it_is_found_and_nobody_else() -> None:
    for name in {**TAKES, **OWN}:
        importlib.import_module(f"outer.holding.{name}")
    forms = sys.modules["outer.holding.forms"]
    found = {(one.__name__, key) for one, key in find_importers(forms, "LIMIT", forms.LIMIT)}
    taken = {(f"outer.holding.{name}", "LIMIT") for name in TAKES if name != "renamed"}
    assert found == taken | {("outer.holding.renamed", "MOST"), ("outer.holding", "LIMIT")}
