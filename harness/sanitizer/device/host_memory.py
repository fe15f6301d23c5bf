"""Pinned memory and generators: what torch asks CUDA for on behalf of tensors of the host."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._device import _device_constructors

_FACTORIES = (
    "arange as_tensor empty empty_like empty_strided eye full full_like linspace ones ones_like "
    "rand rand_like randint randint_like randn randn_like randperm tensor zeros zeros_like"
).split()
_pinned: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()  # storages
_registered: dict[int, int] = {}  # sizes by address, of memory that a program has registered


def install_host_memory() -> None:
    _device_constructors()  # caches the factories before they are replaced
    for name in _FACTORIES:
        factory = _accept_pinning(_accept_index(getattr(torch, name)))
        torch.jit._builtins._register_builtin(factory, f"aten::{name}")  # as TorchScript has it
        setattr(torch, name, factory)
    for name in ("new_empty", "new_zeros", "new_ones", "new_full", "new_tensor"):
        method = getattr(torch.Tensor, name)
        setattr(torch.Tensor, name, _accept_pinning(_accept_index(method)))
    tensor: Any = torch.Tensor
    tensor.to = _accept_index_first(tensor.to, 1)
    tensor.cuda = _accept_index_first(tensor.cuda, 1)
    parsers: Any = torch._C._nn
    parsers._parse_to = _accept_index_first(parsers._parse_to, 0)  # Module.to
    tensor.pin_memory = _pin_tensor
    tensor.is_pinned = _is_pinned
    tensor.record_stream = _record_stream
    torch.Generator = _Generator
    get_module = torch.get_device_module

    def get_device_module(device: Any = None) -> Any:
        if device is None or torch.device(device).type == "cuda":
            return torch.cuda
        return get_module(device)

    torch.get_device_module = get_device_module


# Called with a tensor and a stream that uses it until its end.
RECORD_STREAM_OBSERVERS: list[Callable[[torch.Tensor, Any], None]] = []


def _record_stream(tensor: torch.Tensor, stream: Any) -> None:
    """Free no memory, which nothing here uses later than the program does."""
    for observe in RECORD_STREAM_OBSERVERS:
        observe(tensor, stream)


def _name_device(device: Any) -> Any:
    """Return 'cuda:0' for 0: a bare index means CUDA, and torch finds none on this machine."""
    return f"cuda:{device}" if type(device) is int else device


def _accept_index(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let `device=` be an index."""

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        if type(options.get("device")) is int:
            options["device"] = _name_device(options["device"])
        return function(*args, **options)

    return call


def _accept_index_first(function: Callable[..., Any], place: int) -> Callable[..., Any]:
    """Let `device=`, or the argument at this place, be an index."""
    by_name = _accept_index(function)

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        if len(args) > place and type(args[place]) is int:
            args = (*args[:place], _name_device(args[place]), *args[place + 1 :])
        return by_name(*args, **options)

    return call


def _accept_pinning(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def make_tensor(*args: Any, pin_memory: bool = False, **options: Any) -> Any:
        if isinstance(options.get("device"), int):  # a GPU's number
            options["device"] = torch.device("cuda", options["device"])
        tensor = make(*args, **options)
        if pin_memory:
            _mark_pinned(tensor)
        return tensor

    return make_tensor


def _mark_pinned(tensor: torch.Tensor) -> None:
    if tensor.is_cuda:
        raise RuntimeError("cannot pin 'cuda' only dense CPU tensors can be pinned")
    _pinned[tensor.untyped_storage()] = True


def list_pinned_storages() -> list[torch.UntypedStorage]:
    return list(_pinned)


def _pin_tensor(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
    if _is_pinned(tensor):
        return tensor
    pinned = tensor.clone()
    _mark_pinned(pinned)
    return pinned


def is_reachable(tensor: torch.Tensor) -> bool:
    """Return whether a card reaches a tensor of the host: pinned memory, or registered."""
    address = tensor.data_ptr()
    return _is_pinned(tensor) or any(
        start <= address < start + size for start, size in _registered.items()
    )


def register_memory(address: int, size: int, flags: int = 0) -> int:
    """`cudaHostRegister`."""
    _registered[int(address)] = int(size)
    return 0


def unregister_memory(address: int) -> int:
    _registered.pop(int(address), None)
    return 0


def _is_pinned(tensor: torch.Tensor, device: Any = None) -> bool:
    return not tensor.is_cuda and tensor.untyped_storage() in _pinned


class _GeneratorType(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _torch_generator)


_torch_generator = torch.Generator


class _Generator(metaclass=_GeneratorType):
    """`torch.Generator`: one for a CUDA device is the CPU's, which runs its kernels."""

    def __new__(cls, device: Any = "cpu") -> Any:
        kind = torch.device(device).type
        return _torch_generator("cpu" if kind == "cuda" else device)
