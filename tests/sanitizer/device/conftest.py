"""These tests run on the virtual GPU, which stays in their process."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from harness.sanitizer.device import installation

installation.install_device("H100")
torch.set_num_threads(1)  # some fork, and OpenMP's threads do not come along


@pytest.fixture(scope="session", autouse=True)
def freeze_imports() -> Iterator[None]:
    """Leave what was imported out of collections: the checks make one for many programs."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(params=["virtual", "card"])
def event_source(request: Any) -> Iterator[None]:
    """Let each program of a test run under both sources of events."""
    from launch_programs import SOURCES  # which imports the device that this file installs

    SOURCES.append(request.param)
    yield
    SOURCES.pop()
