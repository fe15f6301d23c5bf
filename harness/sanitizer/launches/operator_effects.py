"""What an operator of torch reads and writes, from its schema.

Example: `aten::index_put_(Tensor(a!) self, Tensor?[] indices, Tensor values)` writes some elements
of `self` and reads all of `indices` and `values`. An operator whose schema names no effect (some
custom ones) is taken to read some elements of each tensor.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from harness.sanitizer.launches.device_launch import ArgumentUse

# They access the elements of their first tensor that another argument names.
_INDEXED = frozenset(
    """
    index index_put index_put_ _index_put_impl_ index_select gather scatter scatter_ scatter_add
    scatter_add_ scatter_reduce scatter_reduce_ index_copy index_copy_ index_add index_add_
    index_fill index_fill_ embedding take put put_ masked_fill_ masked_scatter_ masked_select
    """.split()
)
# They launch nothing, or only allocate; the schemas of many say that they write `self`, of which
# they change the sizes, the storage or a flag. `_unsafe_view` and `lift` return their argument's
# memory although their schemas do not say so.
_SILENT = frozenset(
    """
    empty empty_like empty_strided empty_permuted new_empty new_empty_strided
    resize_ resize_as_ resize_as_sparse_ _resize_output_ sparse_resize_ sparse_resize_and_clear_
    set_ set_data t_ transpose_ swapaxes_ swapdims_ squeeze_ unsqueeze_ as_strided_
    lift lift_fresh detach detach_ requires_grad_ retain_grad record_stream _coalesced_
    _unsafe_view is_set_to sym_size sym_stride sym_numel is_pinned
    """.split()
)
# They write these arguments while they train, which their schemas do not say.
_RUNNING_STATISTICS = ("running_mean", "running_var")
_NORMS_WITH_STATISTICS = frozenset(
    """
    native_batch_norm cudnn_batch_norm miopen_batch_norm batch_norm_update_stats
    batch_norm_gather_stats batch_norm_gather_stats_with_counts
    """.split()
)
# In place, and what was there before does not matter, or may not (a `beta` of 0).
_OVERWRITING = frozenset(
    """
    fill_ zero_ copy_ random_ normal_ uniform_ exponential_ bernoulli_ geometric_ log_normal_
    cauchy_ addmm_ addmv_ addbmm_ baddbmm_ addr_ _foreach_copy_ _foreach_zero_
    """.split()
)


@dataclass(frozen=True, slots=True)
class ArgumentEffect:
    position: int
    name: str
    writes: bool
    partial: bool
    updates: bool
    follows_strides: bool


@dataclass(frozen=True, slots=True)
class OperatorEffects:
    name: str
    launches: bool
    arguments: tuple[ArgumentEffect, ...]
    writes_results: bool  # new tensors, and no views of the arguments
    training_position: int | None = None  # of the flag without which statistics are only read

    def is_written(self, effect: ArgumentEffect, args: Sequence[Any]) -> bool:
        position = self.training_position
        trains = position is None or position >= len(args) or bool(args[position])
        reads_only = effect.name in _RUNNING_STATISTICS and not trains
        return self.launches and effect.writes and not reads_only

    def list_uses(
        self, args: Sequence[Any], options: Mapping[str, Any], result: Any
    ) -> list[ArgumentUse]:
        uses = [
            ArgumentUse(
                name,
                tensor,
                self.is_written(effect, args),
                effect.partial,
                effect.updates and self.is_written(effect, args),
                effect.follows_strides,
            )
            for effect in self.arguments
            for name, tensor in iterate_tensors(
                effect.name,
                args[effect.position] if effect.position < len(args) else options.get(effect.name),
            )
        ]
        if self.writes_results:
            argument_ids = {id(use.tensor) for use in uses}
            uses += [
                ArgumentUse(name, tensor, writes=True)
                for name, tensor in iterate_tensors("result", result)
                if id(tensor) not in argument_ids
            ]
        return [use for use in uses if use.tensor.is_cuda and use.tensor.numel()]


def iterate_tensors(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, (list, tuple)):
        for place, one in enumerate(value):
            yield from iterate_tensors(f"{name}[{place}]", one)
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from iterate_tensors(str(key), one)


@functools.cache
def find_effects(operator: Any) -> OperatorEffects:
    schema = operator._schema
    base = schema.name.rpartition("::")[2]
    is_aten = schema.name.startswith("aten::")
    has_statistics = is_aten and base in _NORMS_WITH_STATISTICS
    names = [argument.name for argument in schema.arguments]
    writes = [
        (argument.alias_info is not None and argument.alias_info.is_write)
        or (has_statistics and argument.name in _RUNNING_STATISTICS)
        for argument in schema.arguments
    ]
    is_view = not any(writes) and any(value.alias_info is not None for value in schema.returns)
    is_in_place = is_aten and base.endswith("_") and base not in _OVERWRITING
    is_silent = is_aten and (base in _SILENT or is_view)
    return OperatorEffects(
        schema.name,
        not is_silent,
        tuple(
            ArgumentEffect(
                position,
                argument.name,
                written,
                not is_aten or (base in _INDEXED and argument.name in ("self", "weight")),
                written
                and ((is_in_place and position == 0) or argument.name in _RUNNING_STATISTICS),
                is_aten and base not in _INDEXED,
            )
            for position, (argument, written) in enumerate(
                zip(schema.arguments, writes, strict=True)
            )
            if "Tensor" in str(argument.type)
        ),
        not is_silent,
        names.index("training") if {"training", *_RUNNING_STATISTICS} <= set(names) else None,
    )
