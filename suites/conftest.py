"""Settles device, profile and seed before a suite imports SGLang, and has kept failures run."""

from __future__ import annotations

import pytest

from harness.fuzz.regressions import Regressions
from harness.guards import plugin


def pytest_configure(config: pytest.Config) -> None:
    plugin.prepare(config)
    config.pluginmanager.register(Regressions())
