"""PyTorch's settings and random numbers are put back between the tests of one process."""

from __future__ import annotations

import torch

from harness.workers.process_state import ProcessState


def test_settings_and_random_numbers_of_torch_are_as_before() -> None:
    state = ProcessState()
    first = torch.rand(1).item()
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    torch.set_default_device("meta")
    torch.use_deterministic_algorithms(True)
    assert state.restore() == ""
    assert torch.rand(1).item() == first
    assert torch.get_default_dtype() is torch.float32
    assert torch.is_grad_enabled()
    assert torch.empty(1).device.type == "cpu"
    assert not torch.are_deterministic_algorithms_enabled()
