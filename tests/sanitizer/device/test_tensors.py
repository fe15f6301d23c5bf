"""A tensor of the virtual device is on CUDA for torch, and computes what the CPU computes."""

from __future__ import annotations

import copy
import gc
import io
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import checking
from harness.sanitizer.device.refusals import UnansweredName

# Each makes a tensor from another one: views, copies, arithmetic, factories like it.
STEPS: dict[str, Any] = {
    "row": lambda t: t[-1:] if t.dim() else t,
    "slice": lambda t: t[..., ::2] if t.dim() else t,
    "transpose": lambda t: t.transpose(0, -1) if t.dim() else t,
    "flatten": lambda t: t.flatten(),
    "unsqueeze": lambda t: t.unsqueeze(0),
    "expand": lambda t: t.unsqueeze(0).expand(3, *t.shape),
    "int view": lambda t: t.contiguous().view(torch.int32).view(torch.float32),
    "add": lambda t: t + 1,
    "add in place": lambda t: t.clone().add_(2),
    "out": lambda t: torch.mul(t, 2, out=torch.empty_like(t)),
    "double": lambda t: t.to(torch.float64).to(torch.float32),
    "mask": lambda t: t.where(t > 2, torch.zeros_like(t)),
    "index": lambda t: t.flatten()[torch.arange(t.numel(), device=t.device).flip(0)],
    "sort": lambda t: t.flatten().sort().values,
    "cat": lambda t: torch.cat([t.flatten(), t.flatten()]),
    "detach": lambda t: t.detach(),
    "data": lambda t: t.data,
    "zeros": lambda t: t + t.new_zeros(()),
    "ones": lambda t: t + torch.ones(t.shape, device=t.device),
    "chunk": lambda t: t.flatten().chunk(2)[0],
    "round trip": lambda t: t.cpu().to(t.device) if t.is_cuda else t.clone(),
    "remainder": lambda t: t % 3,
    "power": lambda t: (t % 4) ** 2,
    "softmax": lambda t: t.flatten().softmax(0),
}


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(sorted(STEPS)), max_size=5))
def test_a_chain_of_operations_stays_on_the_device_and_equals_the_cpus(names: list[str]) -> None:
    host = torch.arange(12, dtype=torch.float32).view(3, 4)
    device = host.to("cuda")
    for name in names:
        host, device = STEPS[name](host), STEPS[name](device)
        assert device.is_cuda
        assert device.device == torch.device("cuda", 0)
        assert device.shape == host.shape
        assert device.stride() == host.stride()
        assert torch.equal(device.cpu(), host)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["row", "slice", "transpose", "unsqueeze", "data"]), max_size=4))
def test_a_write_through_a_view_reaches_the_base(names: list[str]) -> None:
    host = torch.zeros(3, 4)
    device = torch.zeros(3, 4, device="cuda")
    host_view, device_view = host, device
    for name in names:
        host_view, device_view = STEPS[name](host_view), STEPS[name](device_view)
    host_view.fill_(7)
    device_view.fill_(7)
    assert device_view.untyped_storage().data_ptr() == device.untyped_storage().data_ptr()
    assert torch.equal(device.cpu(), host)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(2, device="cuda"),
        lambda: torch.tensor([1, 2], device="cuda:0"),
        lambda: torch.arange(3, device=torch.device("cuda")),
        lambda: torch.ones(2).cuda(),
        lambda: torch.ones(2).to("cuda", non_blocking=True),
        lambda: torch.ones(2).to(device="cuda", dtype=torch.bfloat16),
        lambda: torch.ones(2).to(torch.ones(1, device="cuda")),
        lambda: torch.nn.Linear(2, 2).to("cuda").weight,
        lambda: torch.empty_like(torch.ones(2), device="cuda"),
        lambda: torch.ones(2, device="cuda").new_empty(3),
        lambda: torch.randn(2, device="cuda", generator=torch.Generator(device="cuda")),
        lambda: torch.empty(4, device="cuda").to(torch.float8_e4m3fn),
    ],
)
def test_each_way_to_make_a_tensor_puts_it_on_the_device(make: Any) -> None:
    assert make().device == torch.device("cuda", 0)


def test_a_tensor_of_the_host_stays_there() -> None:
    assert torch.ones(2).device.type == "cpu"
    assert not torch.ones(2).is_cuda
    assert torch.ones(2, device="cuda").cpu().device.type == "cpu"


def test_factories_follow_the_default_device() -> None:
    with torch.device("cuda"):
        assert torch.ones(2).is_cuda
        assert torch.tensor([1]).is_cuda
        assert not torch.ones(2, device="cpu").is_cuda


def test_operands_on_two_devices_are_refused() -> None:
    with pytest.raises(RuntimeError, match="two devices, cuda:0 and cpu"):
        torch.ones(2, device="cuda") + torch.ones(2)


def test_numpy_refuses_a_device_tensor() -> None:
    with pytest.raises(TypeError, match="cuda:0"):
        torch.ones(2, device="cuda").numpy()


def test_large_memory_takes_no_room_until_it_is_written() -> None:
    large = torch.zeros(1 << 35, dtype=torch.uint8, device="cuda")
    large[-1] = 3
    assert large[-1].item() == 3
    assert torch.cuda.memory_allocated() >= 1 << 35


def test_an_allocation_beyond_the_card_is_out_of_memory() -> None:
    gc.collect()  # what earlier tests left in cycles goes now, and not between the two counts
    before = torch.cuda.memory_allocated()
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        torch.empty(1 << 37, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() == before


def test_freed_memory_is_free() -> None:
    before = torch.cuda.mem_get_info()[0]
    large = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    assert torch.cuda.mem_get_info()[0] == before - (1 << 30)
    del large
    assert torch.cuda.mem_get_info()[0] == before


def test_memory_in_a_reference_cycle_is_freed_for_the_next_tensor() -> None:
    cycle: list[object] = [torch.empty(1 << 36, dtype=torch.uint8, device="cuda")]
    cycle.append(cycle)
    del cycle
    torch.empty(1 << 36, dtype=torch.uint8, device="cuda")


def test_pinned_memory_is_the_hosts() -> None:
    pinned = torch.empty(2, pin_memory=True)
    assert pinned.is_pinned()
    assert not pinned.is_cuda
    assert not torch.empty(2).is_pinned()
    assert torch.ones(2).pin_memory().is_pinned()


@pytest.mark.parametrize("is_batch", [False, True])
def test_a_product_of_halves_may_be_wider_than_they_are(is_batch: bool) -> None:
    shape = (2, 3, 3) if is_batch else (3, 3)
    multiply = torch.bmm if is_batch else torch.mm
    left = torch.full(shape, 200.0, dtype=torch.float16, device="cuda")
    result = multiply(left, left, out_dtype=torch.float32)
    assert result.dtype is torch.float32
    assert float(result.max()) == 120_000  # more than float16 holds
    target = torch.zeros(shape, device="cuda")
    assert multiply(left, left, out_dtype=torch.float32, out=target) is target
    assert torch.equal(target, result)


@pytest.mark.parametrize("is_batch", [False, True])
def test_a_product_is_added_to_a_wider_accumulator(is_batch: bool) -> None:
    shape = (2, 3, 3) if is_batch else (3, 3)
    add_product = torch.baddbmm if is_batch else torch.addmm
    left = torch.full(shape, 200.0, dtype=torch.float16, device="cuda")
    sums = torch.ones(shape, device="cuda")
    result = add_product(sums, left, left, out_dtype=torch.float32, beta=2, alpha=0.5)
    assert result.dtype is torch.float32
    assert result.unique().tolist() == [60_002]
    assert add_product(sums, left, left, out_dtype=torch.float32, out=sums) is sums
    assert sums.unique().tolist() == [120_001]  # more than float16 holds


MASKS: dict[str, Any] = {
    "none": None,
    "of truth values": torch.ones(6, 6, dtype=torch.bool).tril(),
    "that is added": torch.linspace(-2, 2, 36).view(6, 6),
    "with a row of nothing": torch.ones(6, 6, dtype=torch.bool).tril(-1),
}


@pytest.mark.parametrize("is_trained", [False, True])
@pytest.mark.parametrize("mask", MASKS)
def test_attention_and_its_gradients_are_those_of_the_cpu(mask: str, is_trained: bool) -> None:
    results = []
    for device in ("cpu", "cuda"):
        generator = torch.Generator().manual_seed(0)
        query, key, value = (
            torch.randn(1, 2, 6, 8, generator=generator).to(device).requires_grad_(is_trained)
            for _ in range(3)
        )
        masked = None if MASKS[mask] is None else MASKS[mask].to(device)
        out = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=masked)
        if is_trained:
            out.square().sum().backward()
        gradients = [one.grad.cpu() for one in (query, key, value) if one.grad is not None]
        results.append([out.detach().cpu(), *gradients])
    torch.testing.assert_close(results[1], results[0])


def copy_by_file(tensor: torch.Tensor, device: str | None = None) -> torch.Tensor:
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    loaded: torch.Tensor = torch.load(file, map_location=device)
    return loaded


COPIES: dict[str, Any] = {
    "deepcopy": copy.deepcopy,
    "a file": copy_by_file,
    "a file from the host": lambda x: copy_by_file(x.cpu(), "cuda"),
    "the host's storage": lambda x: x.new_empty(0).set_(x.cpu().untyped_storage().cuda(), 0, (4,)),
}


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_of_a_tensors_storage_is_on_the_device_and_its_own(name: str) -> None:
    tensor = torch.arange(4.0, device="cuda")
    copied = COPIES[name](tensor)
    assert copied.device == tensor.device
    copied.add_(1)
    assert copied.tolist() == [1, 2, 3, 4]
    assert tensor.tolist() == [0, 1, 2, 3]


def test_a_storage_of_the_device_is_made_by_its_size_or_its_bytes() -> None:
    assert torch.UntypedStorage(device="cuda").nbytes() == 0
    for sized in (
        torch.UntypedStorage(8, device="cuda"),
        torch.UntypedStorage(size=8, device="cuda"),
    ):
        assert (sized.nbytes(), sized.device.type) == (8, "cuda")
    filled = torch.UntypedStorage([1, 2, 3], device="cuda")
    tensor = torch.empty(0, dtype=torch.uint8, device="cuda").set_(filled)
    assert (tensor.tolist(), tensor.device.type) == ([1, 2, 3], "cuda")
    with pytest.raises(UnansweredName, match="not by 8, allocator"):
        torch.UntypedStorage(8, device="cuda", allocator=1)  # type: ignore[call-arg]


def test_a_storage_of_the_host_is_made_as_before() -> None:
    assert torch.UntypedStorage(8).device.type == "cpu"
    assert torch.UntypedStorage(8, device="cpu").nbytes() == 8
    assert torch.UntypedStorage([1, 2]).tolist() == [1, 2]
    assert torch.UntypedStorage().nbytes() == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("soften", [torch.softmax, torch.log_softmax])
def test_a_softmax_of_halves_is_computed_in_float32_and_rounded_once(
    soften: Any, dtype: torch.dtype
) -> None:
    data = torch.randn(40, 320, generator=torch.Generator().manual_seed(0)).to(dtype)
    device = data.to("cuda").requires_grad_()
    wide = data.float().requires_grad_()
    assert torch.equal(soften(device, -1).cpu(), soften(wide, -1).to(dtype))
    result = soften(device, -1, dtype=torch.float32)
    assert torch.equal(result.cpu(), soften(wide, -1))
    result.square().sum().backward()
    soften(wide, -1).square().sum().backward()
    assert device.grad is not None
    assert wide.grad is not None
    assert torch.equal(device.grad.cpu(), wide.grad.to(dtype))


@pytest.mark.parametrize("shape", [(2000, 8), (2, 8, 10, 100)])
def test_a_loss_of_halves_is_summed_in_float32(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = (torch.randn(shape, generator=generator) - 6).to("cuda", torch.bfloat16)
    rows = (shape[0], *shape[2:])
    target = torch.zeros(rows, dtype=torch.int64, device="cuda")
    loss = torch.nn.functional.nll_loss(scores, target, reduction="sum")
    exact = torch.nn.functional.nll_loss(scores.cpu().float(), target.cpu(), reduction="sum")
    assert loss.cpu() == exact.to(torch.bfloat16)


def test_a_refusal_under_check_names_the_line_of_the_program() -> None:
    gates = torch.ones(2, 6, device="cuda")
    with checking.checked("virtual"), pytest.raises(UnansweredName, match=r"test_tensors\.py:\d+"):
        torch.ops.aten._thnn_fused_gru_cell(gates, gates, gates)


INDEXED: dict[str, Any] = {
    "factory": lambda: torch.empty(3, device=0),
    "eye": lambda: torch.eye(3, device=0),
    "new": lambda: torch.ones(3).new_zeros(3, device=0),
    "to": lambda: torch.ones(3).to(0),
    "to device": lambda: torch.ones(3).to(device=0),
    "cuda": lambda: torch.ones(3).cuda(0),
    "module": lambda: torch.nn.Linear(3, 3).to(0).weight,
    "parameter": lambda: torch.nn.Linear(3, 3, device=0).weight,
}


@pytest.mark.parametrize("name", INDEXED)
def test_a_bare_index_is_a_device_of_cuda(name: str) -> None:
    assert INDEXED[name]().device == torch.device("cuda", 0)


@pytest.mark.parametrize("shape", [(2, 4, 9), (2, 4, 9, 7)], ids=["1d", "2d"])
def test_a_convolution_of_each_channel_and_its_gradients_equal_the_cpus(
    shape: tuple[int, ...],
) -> None:
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(shape, generator=generator)
    weight = torch.randn(8, 1, *[3] * (len(shape) - 2), generator=generator)  # two a channel
    convolve = torch.nn.functional.conv1d if len(shape) == 3 else torch.nn.functional.conv2d
    options: Any = {"groups": 4, "padding": 1, "dilation": 2, "stride": 2}
    results = []
    for device in ("cpu", "cuda"):
        inputs = [
            one.detach().to(device).requires_grad_() for one in (data, weight, torch.arange(8.0))
        ]
        out = convolve(*inputs, **options)
        out.square().sum().backward()
        gradients = [one.grad.cpu() for one in inputs if one.grad is not None]
        results.append([out.detach().cpu(), *gradients])
    assert len(results[1]) == 4
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_torchscript_knows_the_factories() -> None:
    def count(length: int) -> torch.Tensor:
        return torch.zeros([length]) + torch.tensor(2.0)

    assert torch.jit.script(count)(3).tolist() == [2, 2, 2]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_an_operator_of_higher_order_runs_under_check() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    query = torch.ones(1, 1, 4, 16, device="cuda", requires_grad=True)
    value = torch.arange(64.0, device="cuda").view(1, 1, 4, 16)
    with checking.checked("virtual"):
        flex_attention(query, query.detach(), value).sum().backward()
    assert query.grad is not None
    assert query.grad.shape == query.shape
