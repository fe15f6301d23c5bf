"""Settles device, profile and seed before a suite imports SGLang."""

from __future__ import annotations

import pytest

from harness.guards import plugin


def pytest_configure(config: pytest.Config) -> None:
    plugin.prepare(config)
