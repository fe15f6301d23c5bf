"""The guard with which torch's C++ code asks for the current CUDA device.

A torch for CPUs has no guard for CUDA: its place in c10's registry is empty. The one put there is
the CPU's, which switches nothing, with the first methods of its table of virtual functions
replaced: `type()` and `getDevice()` name CUDA. Their order is that of the interface, the same since
it exists (c10/core/impl/DeviceGuardImplInterface.h); a `c10::Device` is two bytes, the type and the
index.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch

from harness.core.errors import UnfixError

_REGISTRY_SYMBOL = "_ZN3c104impl26device_guard_impl_registryE"
_CPU, _CUDA = 0, 1  # c10's device types
_WORD = ctypes.sizeof(ctypes.c_void_p)
_HEADER_WORDS = 2  # in front of a table of virtual functions
_TABLE_WORDS = 48  # more than the interface has
_TYPE, _EXCHANGE_DEVICE, _GET_DEVICE = 0, 1, 2  # places in the table
_kept: list[Any] = []  # the memory that c10 points to


def install() -> None:
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    registry = (ctypes.c_void_p * (_CUDA + 1)).in_dll(library, _REGISTRY_SYMBOL)
    if registry[_CUDA]:
        raise UnfixError(
            f"torch {torch.__version__} has a CUDA device of its own, and a virtual one cannot "
            "be there too: use the release's environment for CPUs"
        )
    cpu_guard = registry[_CPU]
    assert cpu_guard is not None
    table = _copy_virtual_table(cpu_guard)
    get_device = ctypes.CFUNCTYPE(ctypes.c_uint16, ctypes.c_void_p)(_get_device)
    # Returns 1 whatever it is given: the type CUDA, and the first CUDA device.
    constant_one = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p).value
    table[_HEADER_WORDS + _TYPE] = table[_HEADER_WORDS + _EXCHANGE_DEVICE] = constant_one
    table[_HEADER_WORDS + _GET_DEVICE] = ctypes.cast(get_device, ctypes.c_void_p).value
    guard = ctypes.c_void_p(ctypes.addressof(table) + _HEADER_WORDS * _WORD)
    _kept.extend((table, get_device, guard))
    registry[_CUDA] = ctypes.addressof(guard)


def _copy_virtual_table(guard: int) -> Any:
    functions = ctypes.c_void_p.from_address(guard).value
    assert functions is not None
    table = (ctypes.c_void_p * _TABLE_WORDS)()
    ctypes.memmove(table, functions - _HEADER_WORDS * _WORD, ctypes.sizeof(table))
    return table


def _get_device(_: int) -> int:
    return _CUDA | int(torch.cuda.current_device()) << 8
