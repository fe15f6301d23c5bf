"""A workspace for `unfix mutate`."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_release import Mutate


@pytest.fixture
def mutate(tmp_path: Path) -> Mutate:
    return Mutate(tmp_path)
