"""The guard with which torch's C++ code asks for the current CUDA device and its stream.

A torch for CPUs has no guard for CUDA: its place in c10's registry is empty. The one put there is
the CPU's, which switches nothing, with the first methods of its table of virtual functions
replaced: `type()` and `getDevice()` name CUDA, and each device has one stream, with which autograd
runs a backward pass. Their order is that of the interface, the same since it exists
(c10/core/impl/DeviceGuardImplInterface.h); a `c10::Device` is two bytes, the type and the index,
and a `c10::Stream` is that device and a number, in two registers. Autograd also asks torch's hooks
for CUDA (ATen/detail/AcceleratorHooksInterface.h) whether there is an accelerator.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
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
_GET_STREAM, _EXCHANGE_STREAM = 5, 9
_IS_BUILT, _HAS_PRIMARY_CONTEXT = 2, 4  # places in the table of the hooks
_GET_HOOKS = "_ZN2at6detail12getCUDAHooksEv"
# Machine code by architecture: the stream 0 of the device in the argument; the stream in it.
_STREAM_CODE = {
    "x86_64": (bytes.fromhex("0fb7c631d2c3"), bytes.fromhex("4889f0c3")),
    "aarch64": (
        bytes.fromhex("203c0053e1031faac0035fd6"),
        bytes.fromhex("e00301aae10302aac0035fd6"),
    ),
}
_kept: list[Any] = []  # the memory that c10 points to


def install_device_guard() -> None:
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
    for place, address in zip((_GET_STREAM, _EXCHANGE_STREAM), _load_stream_code(), strict=True):
        table[_HEADER_WORDS + place] = address
    _show_accelerator(constant_one)
    guard = ctypes.c_void_p(ctypes.addressof(table) + _HEADER_WORDS * _WORD)
    _kept.extend((table, get_device, guard))
    registry[_CUDA] = ctypes.addressof(guard)


def _load_stream_code() -> list[int]:
    machine = platform.machine()
    if machine not in _STREAM_CODE:
        raise UnfixError(
            f"the virtual device knows processors of {', '.join(_STREAM_CODE)}, and not {machine}"
        )
    memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    first = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    addresses = []
    for code in _STREAM_CODE[machine]:
        addresses.append(first + memory.tell())
        memory.write(code.ljust(16, b"\0"))
    _kept.append(memory)
    return addresses


def _show_accelerator(constant_one: int | None) -> None:
    """Have torch's C++ code find CUDA built and in use, which says nothing of its functions."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    get_hooks = getattr(library, _GET_HOOKS)
    get_hooks.restype = ctypes.c_void_p
    hooks = get_hooks()
    table = _copy_virtual_table(hooks)
    for place in (_IS_BUILT, _HAS_PRIMARY_CONTEXT):
        table[_HEADER_WORDS + place] = constant_one
    _kept.append(table)
    ctypes.c_void_p.from_address(hooks).value = ctypes.addressof(table) + _HEADER_WORDS * _WORD


def _copy_virtual_table(guard: int) -> Any:
    functions = ctypes.c_void_p.from_address(guard).value
    assert functions is not None
    table = (ctypes.c_void_p * _TABLE_WORDS)()
    ctypes.memmove(table, functions - _HEADER_WORDS * _WORD, ctypes.sizeof(table))
    return table


def _get_device(_: int) -> int:
    return _CUDA | int(torch.cuda.current_device()) << 8
