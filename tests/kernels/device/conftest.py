"""These tests run on the virtual GPU, which stays in their process."""

import gc
from collections.abc import Iterator

import pytest
import torch

from harness.device import installation

installation.install_device("H100")
torch.set_num_threads(1)  # some fork, and OpenMP's threads do not come along


@pytest.fixture(scope="session", autouse=True)
def freeze_imports() -> Iterator[None]:
    """Leave what was imported out of collections: the checks make one for many programs."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
