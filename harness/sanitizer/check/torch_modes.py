"""torch under check: tensors of missing devices, uninitialized tensors, writes by operators.

torch's operators write memory between launches, and the shadow of uninitialized bytes has to
follow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch._ops import HigherOrderOperator
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from harness.sanitizer.check.tracked_memory import MemoryTracker, is_in_host_memory
from harness.sanitizer.gpu import POISON
from harness.sanitizer.gpu.empty_memory import EMPTY_STORAGES

_EMPTY_FACTORIES = frozenset(
    {
        "aten::empty.memory_format",
        "aten::empty_strided",
        "aten::empty_like",
        "aten::new_empty",
        "aten::new_empty_strided",
        "aten::empty_permuted",
    }
)


def fill_with_poison(tensor: torch.Tensor) -> None:
    """Fill uninitialized memory with values that make a wrong result obvious."""
    if not tensor.numel():
        return
    with torch._C._DisableTorchDispatch():
        # On a GPU these very bits mark an uninitialized element; a NaN may be a result there.
        if is_in_host_memory(tensor) and tensor.dtype.is_floating_point and tensor.itemsize > 1:
            tensor.fill_(float("nan"))
        elif tensor.dtype == torch.bool or tensor.dtype.is_complex:
            tensor.fill_(1)
        else:
            # Made on the tensor's device: during a graph capture nothing may come from the host.
            size = tensor.element_size()
            bits = torch.full((size,), POISON, dtype=torch.uint8, device=tensor.device)
            tensor.copy_(bits.view(tensor.dtype).view(()).expand(tensor.shape))


class CpuDeviceMode(TorchFunctionMode):  # type: ignore[misc]
    """Makes `device="cuda"` mean this machine's memory; operations that need a GPU still fail."""

    def __init__(self, memory: MemoryTracker) -> None:
        super().__init__()
        self._memory = memory

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if not kwargs:
            kwargs = {}
        elif "device" in kwargs or "pin_memory" in kwargs:
            kwargs = {
                name: _ARGUMENT_REWRITES.get(name, _return_unchanged)(value)
                for name, value in kwargs.items()
            }
        name = getattr(func, "__name__", "")
        if name in _MEMORY_METHODS:
            if name in ("cuda", "pin_memory"):
                return args[0]
            if name == "to":
                args = (args[0], *map(_to_cpu, args[1:]))
            elif name != "data_ptr":
                self._mark_initialized(args[0])
            elif is_in_host_memory(args[0]):
                # A kernel may load this address from a table of addresses.
                self._memory.track_storage(args[0], "a tensor whose data_ptr() was read")
        return func(*args, **kwargs)

    def _mark_initialized(self, tensor: torch.Tensor) -> None:
        """Mark the whole tensor as written from here on, since numpy's writes are not tracked."""
        storage = self._memory.find_storage(tensor)
        if storage is not None:
            storage.mark_initialized()


def _to_cpu(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type in ("cuda", "npu") else value
    if isinstance(value, str) and value.split(":")[0] in ("cuda", "npu"):
        return "cpu"
    return value


def _return_unchanged(value: Any) -> Any:
    return value


_ARGUMENT_REWRITES: dict[str, Callable[[Any], Any]] = {
    "device": _to_cpu,
    "pin_memory": lambda _: False,
}
_MEMORY_METHODS = frozenset({"numpy", "__array__", "data_ptr", "to", "cuda", "pin_memory"})


class WriteTrackingMode(TorchDispatchMode):  # type: ignore[misc]
    """Marks elements that torch's operators write, and fills new empty tensors with poison."""

    supports_higher_order_operators = True

    def __init__(self, memory: MemoryTracker) -> None:
        super().__init__()
        self._memory = memory

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: no tracer runs here, and excluding it would take longer than the mode."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        # Operators live as long as torch; hashing one takes a call, its id does not.
        effects = _OPERATOR_EFFECTS.get(id(func))
        if effects is None:
            if isinstance(func, HigherOrderOperator):  # flex attention: all its results are new
                return func(*args, **kwargs)
            effects = _analyze_operator(func)
        empty = effects.returns_empty or (effects.resizes and not args[0].numel())
        result = func(*args, **kwargs)
        if empty:
            self._mark_uninitialized(result)
        for place, name in effects.writes:
            value = args[place] if place is not None and place < len(args) else kwargs.get(name)
            for tensor in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(tensor, torch.Tensor):
                    self._memory.mark_written(tensor)
        return result

    def _mark_uninitialized(self, tensor: torch.Tensor) -> None:
        if type(tensor) is torch.Tensor and tensor.numel():
            fill_with_poison(tensor)
            if is_in_host_memory(tensor):
                self._memory.track_storage(tensor, "an empty tensor").mark_uninitialized()
            elif tensor.is_cuda and not torch.cuda.is_current_stream_capturing():
                EMPTY_STORAGES.register(tensor)


def warm_operator_cache() -> None:
    """Run the commonest operators, to fill the caches of torch and of this module for forks."""
    with WriteTrackingMode(MemoryTracker()):
        place, some = torch.tensor([0, 1]), torch.arange(4, dtype=torch.float32)
        torch.arange(1, 4), torch.arange(0, 4, 2), torch.empty(4), torch.full((4,), 1)
        torch.zeros(4), torch.ones(4), torch.zeros_like(some), torch.cat([some, some])
        some.view(2, 2)[0], some[1:3], some.unsqueeze(0).expand(2, 4), some.view(torch.int32)
        some.detach(), some.clone(), some.to(torch.int64), some.permute(0)
        some.copy_(some), some.fill_(place[0]), some.fill_(1), some[place], some[:1].item()
        some[place] = torch.ones(2)
        some + some, some - some, some * some, some // 2, some % 2, some.clamp(0, 1)
        some.cumsum(0), some.max(), some.max(0), some.sum(), some.flip(0), some.sort()
        torch.where(some > 0, some, some), some == 1, some != some, -some, place.repeat(2)


class _OperatorEffects(NamedTuple):
    """How an operator changes memory."""

    returns_empty: bool  # uninitialized result
    resizes: bool
    writes: tuple[tuple[int | None, str], ...]  # written arguments
    operator: Any  # a reference, so that its id stays its own


_OPERATOR_EFFECTS: dict[int, _OperatorEffects] = {}


def _analyze_operator(func: Any) -> _OperatorEffects:
    # `t_` and `set_` change which memory a tensor is of, and write none.
    writes = () if torch.Tag.inplace_view in func.tags else _find_written_arguments(func)
    name = func.name()
    _OPERATOR_EFFECTS[id(func)] = _OperatorEffects(
        name in _EMPTY_FACTORIES, name == "aten::resize_", writes, func
    )
    return _OPERATOR_EFFECTS[id(func)]


def _find_written_arguments(func: Any) -> tuple[tuple[int | None, str], ...]:
    return tuple(
        (None if argument.kwarg_only else place, argument.name)
        for place, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
