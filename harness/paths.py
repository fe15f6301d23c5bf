"""Where things lie: the project's data, the managed releases, and what runs leave behind."""

from __future__ import annotations

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def project() -> Path:
    """The folder that holds toggles/, suites/ and fixtures/: the checkout, or inside the wheel."""
    carried = PACKAGE / "carried"
    return carried if carried.is_dir() else PACKAGE.parent


def workspace() -> Path:
    """The folder under which .releases/ and .unfix/ are made: the checkout, or where one works."""
    chosen = os.environ.get("UNFIX_HOME")
    if chosen:
        return Path(chosen).resolve()
    return Path.cwd() if project() != PACKAGE.parent else PACKAGE.parent


def toggles() -> Path:
    return project() / "toggles"


def releases() -> Path:
    return workspace() / ".releases"


def state() -> Path:
    """What runs leave behind: plans, attestations, stores."""
    return workspace() / ".unfix"
