"""What the harness's own tests share: the toy release and its toggles."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

TOY = Path(__file__).parent / "toy"
# The tests under releases/ run in the environment of a release, over the real one.
if importlib.util.find_spec("sglang") is None:
    sys.path.insert(0, str(TOY))


@pytest.fixture
def toy() -> Path:
    return TOY


@pytest.fixture
def toy_toggles() -> Path:
    return TOY / "toggles"


@pytest.fixture
def shell(tmp_path: Path) -> Any:
    from shell import Shell

    return Shell(tmp_path)
