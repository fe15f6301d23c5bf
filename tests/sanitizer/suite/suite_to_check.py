"""A suite as others write it: `device="cuda"`, a skip without a GPU, autograd, fixtures."""

import contextlib

import pytest
import torch
from suite_kernels import assert_small, copy_block, copy_tuned, exponentials, find_lanes

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return copy_tensor(x)

    @staticmethod
    def backward(ctx, gradient):
        return copy_tensor(gradient.contiguous())


def copy_tensor(x):
    y = torch.empty(x.shape, device="cuda")
    copy_block[(2,)](x, y, x.numel(), BLOCK=8)
    return y


@needs_gpu
def test_that_passes():
    from harness.sanitizer.device.record import RECORD

    x = torch.randn(16, device="cuda")
    for _ in range(2):
        RECORD.count_stand_in("sgl_kernel.toy")
    assert torch.equal(copy_tensor(x), x)


@needs_gpu
def test_that_overruns():
    x = torch.randn(12, device="cuda")
    assert torch.equal(copy_tensor(x), x)


def test_that_overruns_and_fails():
    copy_tensor(torch.randn(12, device="cuda"))
    raise KeyError("its own error")


def test_that_is_refused():
    find_lanes[(1,)](torch.zeros(16, dtype=torch.int32, device="cuda"), BLOCK=16)


def test_that_is_no_launch_for_a_card():
    copy_block[(2,)](torch.zeros(16), torch.zeros(16, device="cuda"), 16, BLOCK=8)


def test_that_expects_what_a_card_refuses():
    x = torch.zeros(16, device="cuda")
    with pytest.raises(RuntimeError, match="a grid of"):
        copy_block[(1, 70_000)](x, x, 16, BLOCK=8)
    copy_block[(2,)](x, x.clone(), 16, BLOCK=8)


@pytest.mark.sanitize(bounds="storage", kernels=["copy_block"])
def test_that_reaches_its_storage_on_purpose():
    copy_block[(2,)](
        torch.zeros(16, device="cuda")[:12], torch.zeros(16, device="cuda"), 16, BLOCK=8
    )


@pytest.mark.sanitize(bounds="storage", kernels=["assert_small"])
def test_that_allows_another_kernel_its_storage():
    copy_block[(2,)](
        torch.zeros(16, device="cuda")[:12], torch.zeros(16, device="cuda"), 16, BLOCK=8
    )


def test_with_an_assertion_that_a_card_skips():
    assert_small[(1,)](torch.full((1,), 9, dtype=torch.int32, device="cuda"))


def test_that_launches_nothing():
    assert torch.ones(2, device="cuda").is_cuda


def test_of_a_backward_pass():
    x = torch.randn(16, device="cuda", requires_grad=True)
    Copy.apply(x).sum().backward()
    assert x.grad.tolist() == [1] * 16


@pytest.fixture(scope="module")
def copy_of_ones():
    return copy_tensor(torch.ones(16, device="cuda"))


def test_of_a_fixture(copy_of_ones):
    assert copy_of_ones.sum() == 16


def test_of_the_fixture_again(copy_of_ones):
    assert copy_tensor(copy_of_ones).sum() == 16


def test_of_a_tuned_kernel():
    x = torch.ones(8, device="cuda")
    copy_tuned[(1,)](x, torch.empty_like(x), 8)


def test_of_an_approximation():
    exponentials[(1,)](torch.ones(16, device="cuda"), BLOCK=16)


def test_that_needs_an_operator():
    gates = torch.ones(2, 6, device="cuda")
    try:
        torch.ops.aten._thnn_fused_gru_cell(gates, gates, gates)
    except NotImplementedError:
        raise RuntimeError("tried three times") from None


def test_that_catches_a_refusal_and_fails():
    gates = torch.ones(2, 6, device="cuda")
    with contextlib.suppress(NotImplementedError):
        torch.ops.aten._thnn_fused_gru_cell(gates, gates, gates)
    assert gates.sum() == 13
