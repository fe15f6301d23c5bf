"""What each test of this folder stands on."""

from __future__ import annotations

import pytest

from fixtures.lifecycles import setups


@pytest.fixture(autouse=True)
def _schedulers_run_on_the_virtual_gpu() -> None:
    setups.skip_without_virtual_gpu()
    setups.skip_on_unknown_releases()
    setups.import_scheduler()  # what ran before forks did so, where there are any
