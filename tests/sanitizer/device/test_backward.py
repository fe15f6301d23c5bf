"""A backward pass on the virtual device runs in autograd's own thread, on the device."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

import torch

from harness import checking


class _DoublingFunction(torch.autograd.Function):
    threads: ClassVar[list[int]] = []

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        _DoublingFunction.threads.append(threading.get_ident())
        return gradient * torch.full((3,), 2.0, device="cuda")


def test_gradients_are_on_the_device() -> None:
    with checking.checked("virtual"):
        x = torch.ones(3, device="cuda", requires_grad=True)
        _DoublingFunction.apply(x).sum().backward()
        assert x.grad is not None
        assert str(x.grad.device) == "cuda:0"
        assert x.grad.tolist() == [2, 2, 2]
    assert threading.get_ident() not in _DoublingFunction.threads


def test_a_layer_trains() -> None:
    with checking.checked("virtual"):
        torch.manual_seed(0)
        layer = torch.nn.Linear(4, 2, device="cuda")
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        x, y = torch.randn(8, 4, device="cuda"), torch.randn(8, 2, device="cuda")
        losses = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(layer(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)


def test_autocast_and_the_default_device_are_the_devices() -> None:
    with checking.checked("virtual"):
        torch.set_default_device("cuda")
        try:
            x = torch.ones(2, 2)
            assert x.is_cuda
            with torch.autocast("cuda", dtype=torch.bfloat16):
                assert (x @ x).dtype is torch.bfloat16
        finally:
            torch.set_default_device(None)
