"""An operator of torch writes the memory that its effects name, whatever its schema says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from harness.sanitizer.launches.operator_effects import find_effects

aten = torch.ops.aten


def make_values() -> torch.Tensor:
    return torch.arange(1.0, 13.0).reshape(3, 4).clone()  # no view: `detach_` refuses one


CALLS: dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {
    "fill_": lambda: (aten.fill_.Scalar, (make_values(), 7)),
    "index_put_": lambda: (
        aten.index_put_.default,
        (make_values(), [torch.tensor([1])], torch.zeros(4)),
    ),
    "t_": lambda: (aten.t_.default, (make_values(),)),
    "transpose_": lambda: (aten.transpose_.default, (make_values(), 0, 1)),
    "swapaxes_": lambda: (aten.swapaxes_.default, (make_values(), 0, 1)),
    "squeeze_": lambda: (aten.squeeze_.default, (make_values(),)),
    "as_strided_": lambda: (aten.as_strided_.default, (make_values(), [2, 2], [1, 1])),
    "resize_": lambda: (aten.resize_.default, (make_values(), [2, 2])),
    "resize_as_": lambda: (aten.resize_as_.default, (make_values(), torch.zeros(2))),
    "set_": lambda: (aten.set_.source_Tensor, (make_values(), torch.zeros(2))),
    "detach_": lambda: (aten.detach_.default, (make_values(),)),
    "requires_grad_": lambda: (aten.requires_grad_.default, (make_values(),)),
    "_unsafe_view": lambda: (aten._unsafe_view.default, (make_values(), [12])),
    "batch norm that trains": lambda: (
        aten.native_batch_norm.default,
        (make_values(), None, None, torch.zeros(4), torch.ones(4), True, 0.5, 1e-5),
    ),
    "batch norm whose schema names its statistics": lambda: (
        aten._native_batch_norm_legit.default,
        (make_values(), None, None, torch.zeros(4), torch.ones(4), False, 0.5, 1e-5),
    ),
    "batch norm that does not": lambda: (
        aten.native_batch_norm.default,
        (make_values(), None, None, torch.zeros(4), torch.ones(4), False, 0.5, 1e-5),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_arguments_are_written_where_their_bytes_change(name: str) -> None:
    operator, arguments = CALLS[name]()
    tensors = {place: value for place, value in enumerate(arguments) if torch.is_tensor(value)}
    # A tensor of its own over the same storage: an operator may resize the argument itself.
    memory = {
        place: torch.empty(0).set_(value.untyped_storage()) for place, value in tensors.items()
    }
    before = {place: stored.clone() for place, stored in memory.items()}
    effects = find_effects(operator)
    predicted = {e.position for e in effects.arguments if effects.is_written(e, arguments)}
    operator(*arguments)
    changed = {place for place, stored in memory.items() if not torch.equal(stored, before[place])}
    assert predicted == changed


def test_a_stream_that_is_recorded_launches_nothing() -> None:
    """Its schema says that it writes `self`; it keeps the memory from being used again early."""
    assert not find_effects(aten.record_stream.default).launches
