"""Sets device, profile and seed before a suite imports SGLang, and runs the recorded failures."""

from __future__ import annotations

import pytest

from harness.guards import plugin
from harness.runs.fuzz.regressions import RegressionPlugin


def pytest_configure(config: pytest.Config) -> None:
    plugin.prepare_session(config)
    config.pluginmanager.register(RegressionPlugin())
