"""Operators without arithmetic: large floats have shapes and zeros, integers have values.

A model of 400 GB cannot be computed here, and its launches depend on none of its floats. So in a
dry run an operator with a large floating-point tensor among its operands computes no number: its
result gets the shape, strides and type that torch's own `meta` kernel says, over memory that is
mapped and never touched. Integers (positions, slots, tables of pages, experts) are computed, since
launches and their addresses depend on them. Example: with `x` of 8192 x 16384 bfloat16,
`x @ w` is a mapped tensor of zeros; `positions.clamp(min=0)` is computed.

Where a large float decides an integer, the integer is a stand-in: `topk` and `sort` return indices
that are spread over all, everything else zeros.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch

from harness.sanitizer import plugins
from harness.sanitizer.device import dispatch, memory, stand_ins
from harness.sanitizer.device.dispatch import OperatorPlan
from harness.sanitizer.device.nested_tensors import list_tensors

LARGE = 1 << 16  # elements from which a float has no arithmetic
LARGEST_COMPUTED = 1 << 25  # elements up to which an integer operator is computed
# Operators that make a large result of small operands.
_GROWING = frozenset(
    "aten::mm aten::bmm aten::addmm aten::baddbmm aten::repeat aten::cat aten::stack "
    "aten::mul.Tensor aten::add.Tensor aten::embedding aten::index.Tensor aten::clone "
    "aten::index_select aten::_to_copy".split()
)
_FILLS = frozenset({"aten::zero_", "aten::fill_.Scalar", "aten::fill_.Tensor"})


_is_enabled = False
_computed = LARGE  # elements below which a float has arithmetic now


def enable_dry_run() -> None:
    """Skip the arithmetic of large floats in this process, for good."""
    global _is_enabled
    _is_enabled = True
    dispatch.set_substitute(skip_arithmetic)
    memory.map_all_allocations(lambda tensor: not lacks_values(tensor))
    for plugin in plugins.list_installed():
        stand_ins.answer_with_shapes(plugin.find_shapes())


def lacks_values(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is of floats that no arithmetic gives."""
    return _is_enabled and tensor.is_floating_point() and tensor.numel() >= LARGE


@contextlib.contextmanager
def compute_floats(elements: int) -> Iterator[None]:
    """Compute operators on floats of fewer elements than these meanwhile: scores of drafts."""
    global _computed
    before, _computed = _computed, elements
    try:
        yield
    finally:
        _computed = before


def skip_arithmetic(plan: OperatorPlan, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Return the result of an operator without arithmetic, or NotImplemented to compute it."""
    result = _skip_operator(plan, args, options)
    if result is not NotImplemented:
        outputs = (args[at] if at < len(args) else options.get(name) for at, name in plan.outputs)
        dispatch.report_uncomputed(result, list(outputs))
    return result


def _skip_operator(plan: OperatorPlan, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    tensors = list_tensors(args, options)
    floats = [tensor for tensor in tensors if tensor.is_floating_point()]
    is_large = any(tensor.numel() >= _computed for tensor in tensors)
    if plan.outputs:
        return _skip_writing(plan, args, options) if is_large else NotImplemented
    if not is_large and not (floats and plan.name in _GROWING):
        return NotImplemented
    if not floats and max(tensor.numel() for tensor in tensors) <= LARGEST_COMPUTED:
        return NotImplemented
    return _make_result(plan, args, options, is_large)


def _skip_writing(plan: OperatorPlan, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Leave a large operator's floating-point output as it is."""
    outputs = [
        args[place] if place < len(args) else options.get(name) for place, name in plan.outputs
    ]
    first = outputs[0][0] if isinstance(outputs[0], (list, tuple)) and outputs[0] else outputs[0]
    if not isinstance(first, torch.Tensor):
        return NotImplemented
    is_huge_fill = plan.name in _FILLS and first.numel() > LARGEST_COMPUTED
    if not first.is_floating_point() and not is_huge_fill:
        return NotImplemented
    if any(isinstance(output, torch.Tensor) and not output.numel() for output in outputs):
        _resize_empty_outputs(plan, args, options)
    results = [None if source is None else outputs[source] for source in plan.returns]
    return results[0] if len(results) == 1 else tuple(results) if results else None


def _resize_empty_outputs(
    plan: OperatorPlan, args: tuple[Any, ...], options: dict[str, Any]
) -> None:
    """Give `out=` tensors without elements their size: `abs` makes one and has it resized."""
    host_args, host_options = [_to_meta(value) for value in args], _map_options(options)
    plan.operator(*host_args, **host_options)
    for place, name in plan.outputs:
        output, shaped = (
            (args[place], host_args[place])
            if place < len(args)
            else (options[name], host_options[name])
        )
        if name in plan.resizable and output.shape != shaped.shape:
            dispatch.resize_tensor(output, shaped.shape)


def _make_result(
    plan: OperatorPlan, args: tuple[Any, ...], options: dict[str, Any], is_large: bool
) -> Any:
    index = next((t.get_device() for t in list_tensors(args, options) if t.is_cuda), None)
    if index is None:
        return NotImplemented
    host_options = dict(options)
    target = options.get("device")
    if target is not None:
        target = torch.device(target)
        host_options["device"] = torch.device("meta")
    try:
        shapes = plan.operator(*map(_to_meta, args), **_map_options(host_options))
    except Exception:  # of any operator's own kind: what it cannot do, its CPU kernel says
        return NotImplemented
    if not is_large and not _is_large_float(shapes):
        return NotImplemented
    if target is not None and target.type == "cpu":
        return torch.empty_strided(shapes.size(), shapes.stride(), dtype=shapes.dtype).zero_()
    result = _from_meta(shapes, index)
    if plan.name in ("aten::topk", "aten::sort", "aten::sort.stable"):
        _spread_indices(result[1], args[0].shape[args[2] if _has_axis(plan, args) else -1])
    return result


def _has_axis(plan: OperatorPlan, args: tuple[Any, ...]) -> bool:
    return plan.name == "aten::topk" and len(args) > 2


def _is_large_float(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel() >= _computed
    )


def _map_options(options: dict[str, Any]) -> dict[str, Any]:
    return {
        name: False if name == "pin_memory" else _to_meta(value) for name, value in options.items()
    }


def _to_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, (list, tuple)):
        return [_to_meta(one) for one in value]
    return value


def _from_meta(value: Any, index: int) -> Any:
    if isinstance(value, torch.Tensor):
        return memory.allocate_tensor(value.size(), value.stride(), value.dtype, index)
    if isinstance(value, (list, tuple)):
        return tuple(_from_meta(one, index) for one in value)
    return value


def _spread_indices(indices: torch.Tensor, choices: int) -> None:
    """Choose different indices in each row, and all equally often: experts of a router."""
    host = memory.to_host(indices)
    rows, width = max(1, host.numel() // max(1, host.shape[-1])), host.shape[-1]
    step = width if width < choices else 1  # of a whole order the first ones are chosen
    period = max(1, choices // math.gcd(step, choices))  # rows behind which all repeats
    start = torch.arange(min(rows, period), dtype=torch.int64).mul_(step).unsqueeze(1)
    pattern = (start + torch.arange(width)).remainder_(choices)
    whole = rows - rows % len(pattern)
    flat = host.view(rows, width)
    flat[:whole].view(-1, *pattern.shape).copy_(pattern)
    flat[whole:].copy_(pattern[: rows - whole])
