"""Launches of CUDA kernels with checks: this process fills the parameter that the checks added.

A host call (`module.store_cache(k, v, …)`) notes its tensors; each launch that its C++ code makes
comes to `_fill` (`launch_checks.c`), which finds the tensor of each pointer and gives the launch
its number. Invariant: nothing here waits for the device, so launches can be captured in a graph; a
captured launch keeps the tensors' ends and its number: each replay is checked as its first run.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from harness.core.stderr import report_to_stderr
from harness.sanitizer.cuda.card_facts import CardLaunch
from harness.sanitizer.cuda.checked_toolchain import CheckedToolkit
from harness.sanitizer.cuda.fatbin import HEADER
from harness.sanitizer.cuda.host_arguments import describe_tensor, iterate_tensors, pack_parameters
from harness.sanitizer.cuda.kernel_names import unmangle_name
from harness.sanitizer.gpu.allocator_blocks import ALLOCATOR_BLOCKS
from harness.sanitizer.gpu.empty_memory import EMPTY_STORAGES
from harness.sanitizer.gpu.kernel_summaries import NO_SHADOW_MEMORY, KernelSummaries
from harness.sanitizer.gpu.process_reports import PROCESS_REPORTS, LaunchRecord
from harness.sanitizer.gpu.storage_registry import STORAGE_REGISTRY
from harness.sanitizer.ptx.check_values import make_checked_parameters
from harness.sanitizer.ptx.instrumented_kernel import (
    CHECK_HEADER,
    ENTRY_BYTES,
    MARKED_KEY,
    UNBOUNDED,
    InstrumentedKernel,
    read_kernels,
)
from harness.sanitizer.ptx.launch import Allocation

_HOOK = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_uint32),
    ctypes.c_void_p,
    ctypes.c_void_p,
)
_PLAIN, _FAILED = -1, -2  # answers of the hook
_OF_DRIVER = 0  # the version in the header of an image that `driver_standin.c` has noted
_NO_CALL: tuple[str, tuple[Allocation, ...], list[BaseException]] = ("no known call", (), [])
_TENSOR = "a tensor"  # that no known call names
_NO_CHECKS = "its module was built without checks"
_NO_ROOM = "there was no room for its reports"
_NO_MEMORY = "its pointer is in no memory that is known here"


class CheckedCudaLaunches:
    """The launches of one process, from `install` on."""

    def __init__(
        self,
        toolkit: CheckedToolkit,
        summaries: KernelSummaries,
        describe_server_phase: Callable[[], str] = str,
        whole_storages: bool = False,
        number_launch: Callable[[int], tuple[int, int] | None] | None = None,
    ) -> None:
        """`number_launch`: launches what numbers the next launch of a stream, for races.

        It returns the addresses of that number and of the shadow tables; None in a capture before
        there are any.
        """
        self._number_launch = number_launch
        self._toolkit, self._summaries = toolkit, summaries
        self._describe_server_phase = describe_server_phase
        self._whole_storages = whole_storages
        self._local = threading.local()
        self._modules: dict[int, dict[str, InstrumentedKernel]] = {}  # by address of the fatbin
        self._ambiguous: set[tuple[int, str]] = set()  # entries whose architectures differ
        self._tables: dict[tuple[int, int, str], int | None] = {}
        self._hook = _HOOK(self._fill)

    def install(self) -> None:
        library = ctypes.CDLL(str(self._toolkit.library))
        library.unfix_set_launch_hook(self._hook, self._number_launch is not None)

    @contextmanager
    def note_call(self, name: str, names: tuple[str, ...], args: tuple[Any, ...]) -> Iterator[None]:
        """Note the tensors of a host call while it runs; raise an error of its launches."""
        before = getattr(self._local, "call", None)
        if before is not None:  # its tensors have better names
            yield
            return
        with STORAGE_REGISTRY.ignore_address_requests():
            allocations = tuple(
                describe_tensor(parameter, tensor)
                for parameter, tensor in iterate_tensors(names, args)
                if tensor.is_cuda
            )
        errors: list[BaseException] = []
        self._local.call = name, allocations, errors
        try:
            yield
        except BaseException as error:
            if errors:
                raise errors[0] from error
            raise
        finally:
            self._local.call = None
        if errors:  # host code need not look at what its launch answered
            raise errors[0]

    def _fill(
        self, entry: bytes, fatbin: int, arguments: Any, sides: Any, checks: int, stream: int | None
    ) -> int:
        """Write the checks' parameter; return the number of the kernel's own parameters."""
        try:
            return self._fill_checks(entry.decode(), fatbin, arguments, checks, stream or 0)
        except BaseException as error:
            call = getattr(self._local, "call", None)
            if call is not None:
                call[2].append(error)
            else:
                report_to_stderr(f"a launch of {unmangle_name(entry.decode())} fails: {error!r}")
            return _FAILED

    def _fill_checks(
        self, entry: str, fatbin: int, arguments: Any, checks: int, stream: int
    ) -> int:
        call, allocations, _ = getattr(self._local, "call", None) or _NO_CALL
        kernel = self._read_module(fatbin).get(entry)
        name = unmangle_name(entry)
        if (fatbin, entry) in self._ambiguous:
            raise ValueError(f"{name} has other checks in each architecture of its module")
        captured = torch.cuda.is_current_stream_capturing()
        summary = self._summaries.count_launch(name, _find_place(kernel))
        refusal = _NO_CHECKS if kernel is None else kernel.refusal
        if kernel is None or refusal or not kernel.sites:
            if refusal:
                summary.count_refusal(refusal, captured)
            return _PLAIN
        summary.merge_unchecked_accesses(kernel.unchecked)
        table = self._get_table(fatbin, kernel, name)
        if table is None:
            summary.count_refusal(_NO_ROOM, captured)
            entries = [0, UNBOUNDED] * len(kernel.entries)
            data = bytes(CHECK_HEADER) + struct.pack(f"<{len(entries)}Q", *entries)
        else:
            parameters = pack_parameters(kernel.parameter_layout, arguments)
            record = LaunchRecord(name, (), {}, captured, "", kernel)
            number = PROCESS_REPORTS.remember_launch(record)
            shadow = None
            if kernel.race_groups and self._number_launch is not None:
                shadow = self._number_launch(stream)
                if shadow is None:
                    summary.count_skipped_check(NO_SHADOW_MEMORY)
            checked = make_checked_parameters(
                kernel,
                parameters,
                allocations,
                _find_any_allocation if self._is_of_driver(fatbin) else _find_allocation,
                table,
                number,
                self._whole_storages or captured,
                shadow,
                _is_from_empty,
            )
            for reason in checked.skipped_checks:
                summary.count_skipped_check(reason)
            phase = self._describe_server_phase()
            launch = CardLaunch(name, kernel, checked.targets, call, phase)
            record.build_violation = launch.build_violation
            if checked.unbounded_roots:
                count = sum(site.roots in checked.unbounded_roots for site in kernel.sites)
                summary.merge_unchecked_accesses({_NO_MEMORY: count})
            data = checked.data
        assert len(data) == CHECK_HEADER + ENTRY_BYTES * len(kernel.entries)
        ctypes.memmove(checks, data, len(data))
        return len(kernel.parameter_layout)

    def _get_table(self, fatbin: int, kernel: InstrumentedKernel, name: str) -> int | None:
        device = torch.cuda.current_device()
        key = device, fatbin, kernel.entry
        if self._tables.get(key) is None:
            place = _find_place(kernel)
            self._tables[key] = PROCESS_REPORTS.allocate_table(device, name, place)
        return self._tables[key]

    @staticmethod
    def _is_of_driver(fatbin: int) -> bool:
        """Return whether the launching code called the driver, and no module's own host code."""
        return bool(HEADER.unpack(ctypes.string_at(fatbin, HEADER.size))[1] == _OF_DRIVER)

    def _read_module(self, fatbin: int) -> dict[str, InstrumentedKernel]:
        if fatbin not in self._modules:
            _, _, header, size = HEADER.unpack(ctypes.string_at(fatbin, HEADER.size))
            data = ctypes.string_at(fatbin, header + size)
            kernels: dict[str, InstrumentedKernel] = {}
            for key in dict.fromkeys(MARKED_KEY.findall(data)):
                found = read_kernels(self._toolkit.kernels / f"{key.decode()}.json")
                self._ambiguous |= {
                    (fatbin, entry)
                    for entry, kernel in found.items()
                    if kernels.get(entry, kernel) != kernel
                }
                kernels |= found
            self._modules[fatbin] = kernels
        return self._modules[fatbin]


def _find_place(kernel: InstrumentedKernel | None) -> str:
    if kernel is None or not kernel.sites:
        return ""
    file, line = kernel.sites[0].lines[-1]
    return f"{file}:{line}"


def _is_from_empty(target: Allocation) -> bool:
    base = target.storage_base or target.base
    return len(EMPTY_STORAGES) > 0 and EMPTY_STORAGES.contains(base)


def _find_allocation(address: int) -> Allocation | None:
    """Find the storage that a pointer lies in, if Python has asked for an address of it."""
    storage = STORAGE_REGISTRY.find_containing(address)
    if storage is None:
        return None
    return Allocation(_TENSOR, storage.start, storage.size)


def _find_any_allocation(address: int) -> Allocation | None:
    """Find the storage that a pointer lies in, else the memory that torch's allocator gave."""
    known = _find_allocation(address)
    if known is not None:
        return known
    block = ALLOCATOR_BLOCKS.find_containing(address)
    return None if block is None else Allocation(_TENSOR, *block)
