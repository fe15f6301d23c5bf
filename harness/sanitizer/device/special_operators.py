"""Operators whose CPU kernel would be wrong on device tensors: allocations, copies, fusions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from harness.sanitizer.device import dispatch, host_copies, memory, streams

KERNELS: dict[str, Callable[..., Any]] = {}
_bindings: Any = torch._C


def _register_kernel(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            KERNELS[name] = _make_kernel(name, function)
        return function

    return register


def _make_kernel(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def run_kernel(*args: Any, **options: Any) -> Any:
        with _bindings.DisableTorchFunction():
            plan = dispatch.make_plan(f"aten::{name}")
            result = dispatch.run_substitute(plan, args, options)
            if result is NotImplemented:
                return function(*args, **options)
            dispatch.report_operator(plan, args, options, result)
            return result

    return run_kernel


# Allocations


@_register_kernel("empty.memory_format")
def _empty(
    size: Any,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
    memory_format: Any = None,
) -> torch.Tensor:
    stride = None
    if memory_format not in (None, torch.contiguous_format, torch.preserve_format):
        stride = torch.empty(size, device="meta", memory_format=memory_format).stride()
    result = _allocate_tensor(size, stride, dtype, device)
    dispatch.report_operator(dispatch.make_plan("aten::empty.memory_format"), (size,), {}, result)
    return result


@_register_kernel("empty_strided")
def _empty_strided(
    size: Any,
    stride: Any,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    result = _allocate_tensor(size, stride, dtype, device)
    dispatch.report_operator(dispatch.make_plan("aten::empty_strided"), (size, stride), {}, result)
    return result


def _allocate_tensor(
    size: Any, stride: Any, dtype: torch.dtype | None, device: Any
) -> torch.Tensor:
    index = dispatch.get_index(device)
    return memory.allocate_tensor(size, stride, dtype or torch.get_default_dtype(), index)


@_register_kernel("zeros")
def _zeros(
    size: Any,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    """Zeros; large ones are mapped, and take no memory before they are written."""
    tensor = _allocate_tensor(size, None, dtype, device)
    if tensor.untyped_storage().nbytes() < memory.MAPPED_SIZE:
        tensor.zero_()
    return tensor


@_register_kernel("resize_")
def _resize(tensor: torch.Tensor, size: Any, memory_format: Any = None) -> torch.Tensor:
    dispatch.resize_tensor(tensor, size)
    return tensor


# Copies


@_register_kernel("copy_")
def _copy(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    plan = dispatch.make_plan("aten::copy_")
    if not isinstance(source, torch.Tensor):  # torch passes a number as it is
        source = torch.tensor(source, dtype=target.dtype)
    stream = streams.current_stream(source.device if source.is_cuda else target.device)
    if source.is_cuda and not target.is_cuda and non_blocking and target.is_pinned():
        host_copies.copy_later(target, _on_host(source).to(target.dtype, copy=True), stream)
    else:
        host_copies.deliver_copies(stream.clock)  # the source may be what an earlier copy writes
        _on_host(target).copy_(_on_host(source))
    dispatch.report_operator(plan, (target, source, non_blocking), {}, target)
    if target.is_cuda != source.is_cuda and not non_blocking:
        stream.synchronize()
    return target


@_register_kernel("_to_copy")
def _to_copy(
    source: torch.Tensor,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: Any = None,
) -> torch.Tensor:
    target = source.device if device is None else torch.device(device)
    options = {} if memory_format is None else {"memory_format": memory_format}
    if target.type not in ("cpu", "cuda"):
        return torch.empty_like(source, dtype=dtype, device=target, **options)
    stream = streams.current_stream(source.device if source.is_cuda else target)
    host_copies.deliver_copies(stream.clock)  # the source may be what an earlier copy writes
    host = _on_host(source).to(dtype or source.dtype, copy=True, **options)
    if target.type == "cuda":
        result = memory.to_device(host, dispatch.get_index(target))
    elif non_blocking:
        result = host.clone()
        host_copies.copy_later(result, host, stream)
    else:
        result = host
    plan = dispatch.make_plan("aten::_to_copy")
    dispatch.report_operator(
        plan, (source,), {"dtype": dtype, "device": target, "non_blocking": non_blocking}, result
    )
    if source.is_cuda != (target.type == "cuda") and not non_blocking:
        stream.synchronize()
    return result


@_register_kernel("clone")
def _clone(source: torch.Tensor, memory_format: Any = None) -> torch.Tensor:
    plan = dispatch.make_plan("aten::clone")
    host = memory.to_host(source).clone(memory_format=memory_format or torch.preserve_format)
    result = memory.to_device(host, source.get_device())
    dispatch.report_operator(plan, (source,), {"memory_format": memory_format}, result)
    return result


def _read_number(source: torch.Tensor) -> Any:
    """Read one number: a server reads tens of thousands to place a model's experts."""
    with _bindings.DisableTorchFunction():
        number = memory.to_host(source).item()
        plan = dispatch.make_plan("aten::_local_scalar_dense")
        dispatch.report_operator(plan, (source,), {}, number)
        streams.current_stream().synchronize()
        return number


KERNELS["_local_scalar_dense"] = _read_number


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    return memory.to_host(tensor) if tensor.is_cuda else tensor


# Composite operators that choose a kernel by the device


def _run_whole(name: str) -> None:
    """Run a composite operator on the host as a whole."""
    plan = dispatch.make_plan(f"aten::{name}")
    KERNELS[name] = lambda *args, **options: dispatch.run_on_host(plan, *args, **options)


# Products whose result is wider than their factors: the CPU has none


@_register_kernel("mm.dtype", "bmm.dtype")
def _multiply_into_dtype(
    left: torch.Tensor, right: torch.Tensor, out_dtype: torch.dtype
) -> torch.Tensor:
    return torch.matmul(left.to(out_dtype), right.to(out_dtype))


@_register_kernel("mm.dtype_out", "bmm.dtype_out")
def _multiply_into(
    left: torch.Tensor, right: torch.Tensor, out_dtype: torch.dtype, *, out: torch.Tensor
) -> torch.Tensor:
    return torch.matmul(left.to(out_dtype), right.to(out_dtype), out=out)


@_register_kernel("addmm.dtype", "baddbmm.dtype")
def _add_product_into_dtype(
    added: torch.Tensor,
    left: torch.Tensor,
    right: torch.Tensor,
    out_dtype: torch.dtype,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> torch.Tensor:
    factors = (left.to(out_dtype), right.to(out_dtype))
    add_product = torch.addmm if left.dim() == 2 else torch.baddbmm
    return add_product(added.to(out_dtype), *factors, beta=beta, alpha=alpha)


@_register_kernel("addmm.dtype_out", "baddbmm.dtype_out")
def _add_product_into(
    added: torch.Tensor,
    left: torch.Tensor,
    right: torch.Tensor,
    out_dtype: torch.dtype,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: torch.Tensor,
) -> torch.Tensor:
    return out.copy_(_add_product_into_dtype(added, left, right, out_dtype, beta=beta, alpha=alpha))


# Operators that CUDA computes in float32 for halves: the CPU rounds in between, or has no such type

_HALVES = (torch.float16, torch.bfloat16)


def _make_softmax(name: str) -> Callable[..., torch.Tensor]:
    operator = getattr(torch.ops.aten, name).default

    def compute(data: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
        result = operator(_widen_tensor(data), dim, False)
        dtype = torch.float32 if half_to_float else data.dtype
        return memory.to_device(result.to(dtype), data.get_device())

    return compute


def _make_gradient(name: str) -> Callable[..., torch.Tensor]:
    operator = getattr(torch.ops.aten, name).default

    def compute(
        gradient: torch.Tensor, output: torch.Tensor, dim: int, input_dtype: torch.dtype
    ) -> torch.Tensor:
        widened = _widen_tensor(gradient), _widen_tensor(output)
        result = operator(*widened, dim, widened[1].dtype).to(input_dtype)
        return memory.to_device(result, output.get_device())

    return compute


def _make_loss(name: str) -> Callable[..., tuple[torch.Tensor, ...]]:
    operator = getattr(torch.ops.aten, name).default

    def compute(
        data: torch.Tensor,
        target: torch.Tensor,
        weight: torch.Tensor | None,
        reduction: int,
        ignore_index: int,
    ) -> tuple[torch.Tensor, ...]:
        wide_weight = None if weight is None else _widen_tensor(weight)
        operands = _widen_tensor(data), memory.to_host(target), wide_weight
        results = operator(*operands, reduction, ignore_index)
        index = data.get_device()
        return tuple(memory.to_device(result.to(data.dtype), index) for result in results)

    return compute


def _widen_tensor(tensor: torch.Tensor) -> torch.Tensor:
    host = memory.to_host(tensor)
    return host.float() if host.dtype in _HALVES else host


def _register_reported(name: str, compute: Callable[..., Any]) -> None:
    """Register a kernel of which nothing on the device runs, and report each of its calls."""
    plan = dispatch.make_plan(f"aten::{name}")

    def run_reported(*args: Any, **options: Any) -> Any:
        result = compute(*args, **options)
        dispatch.report_operator(plan, args, options, result)
        return result

    _register_kernel(name)(run_reported)


for _name in ("_softmax", "_log_softmax"):
    _register_reported(_name, _make_softmax(_name))
    _register_reported(f"{_name}_backward_data", _make_gradient(f"{_name}_backward_data"))
for _name in ("nll_loss_forward", "nll_loss2d_forward"):
    _register_reported(_name, _make_loss(_name))


# A convolution of each channel by itself, for which CUDA alone has an operator


@_register_kernel("_conv_depthwise2d")
def _convolve_channels(
    data: torch.Tensor,
    weight: torch.Tensor,
    kernel_size: Any,
    bias: torch.Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
) -> torch.Tensor:
    plan = dispatch.make_plan("aten::_conv_depthwise2d")
    hosts = [None if one is None else memory.to_host(one) for one in (data, weight, bias)]
    groups = data.shape[1]
    host = torch.convolution(*hosts, stride, padding, dilation, False, (0, 0), groups)
    result = memory.to_device(host, data.get_device())
    arguments = (data, weight, kernel_size, bias, stride, padding, dilation)
    dispatch.report_operator(plan, arguments, {}, result)
    return result


for _name in ("scaled_dot_product_attention", "convolution_backward"):
    _run_whole(_name)


def _compute_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> torch.Tensor:
    """Attend in steps that autograd can differentiate, if it has to; else as a whole."""
    tensors = (query, key, value, *([] if attn_mask is None else [attn_mask]))
    in_steps = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    if in_steps and attn_mask is not None and attn_mask.dtype is torch.bool:
        added = torch.zeros_like(attn_mask, dtype=query.dtype)  # a step adds the mask
        attn_mask = added.masked_fill_(attn_mask.logical_not(), float("-inf"))
    arguments = (query, key, value, attn_mask, dropout_p, is_causal)
    if in_steps:
        return torch._scaled_dot_product_attention_math(*arguments, **options)[0]
    with _bindings._AutoDispatchBelowAutograd():
        return torch.ops.aten.scaled_dot_product_attention(*arguments, **options)


# Kernels above autograd, for composite operators that have one of the device.
AUTOGRAD_KERNELS = {"scaled_dot_product_attention": _compute_attention}
