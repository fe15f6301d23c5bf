"""Copies launches with all their arguments to files, so that they can run again elsewhere.

With `UNFIX_CAPTURE=FOLDER` in front of a command, each process that launches a kernel under check
on a CPU writes the launch there before it runs (`triton/capture_folder`). A kernel has a folder
with at most `MAX_LAUNCHES` files, the smallest launches of each mode; a file is named by its size
and a digest, so a launch that is made twice is stored once.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from harness.core.files import write_atomically
from harness.sanitizer.check.tracked_memory import is_in_host_memory
from harness.sanitizer.triton.capture_folder import (
    CAPTURE_VARIABLE,
    get_kernel_folder,
    read_wanted_kernels,
)
from harness.sanitizer.triton.recorded_reach import name_kernel

TOO_LARGE_NAME = "too-large"
MAX_LAUNCHES = 24  # of one kernel
MAX_MODE_LAUNCHES = 8  # of one kernel with the same types and constants
MAX_BYTES = 16 << 20  # of the memory of a launch


@dataclass(frozen=True, slots=True)
class CapturedTensor:
    """A tensor argument: a view of one of the launch's memories."""

    memory: int
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CapturedLaunch:
    """A launch as it was made, before it ran."""

    kernel: str  # module:name
    grid: tuple[int, ...]
    arguments: dict[str, Any]
    memories: tuple[bytes, ...]

    @property
    def byte_count(self) -> int:
        return sum(map(len, self.memories))

    def make_arguments(self) -> dict[str, Any]:
        """Make the arguments anew, with memory of their own; views that overlapped still do."""
        storages = [
            torch.frombuffer(bytearray(memory) or bytearray(1), dtype=torch.uint8).untyped_storage()
            for memory in self.memories
        ]

        def make_value(value: Any) -> Any:
            if not isinstance(value, CapturedTensor):
                return value
            view = value.offset, value.shape, value.strides
            return torch.empty(0, dtype=value.dtype).set_(storages[value.memory], *view)

        return {name: make_value(value) for name, value in self.arguments.items()}


def capture_launch(kernel: Any, values: dict[str, Any], grid: tuple[int, ...], mode: Any) -> None:
    """Write a launch to its kernel's folder, if a folder is named and the launch is wanted."""
    folder = os.environ.get(CAPTURE_VARIABLE)
    if not folder:
        return
    name = name_kernel(kernel)
    wanted = read_wanted_kernels(Path(folder))
    if wanted is not None and name not in wanted:
        return
    place = get_kernel_folder(Path(folder), name)
    tensors = {key: value for key, value in values.items() if isinstance(value, torch.Tensor)}
    if not all(map(is_in_host_memory, tensors.values())):
        return
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors.values()
    }
    size = sum(storage.nbytes() for storage in storages.values())
    if size > MAX_BYTES:
        place.mkdir(parents=True, exist_ok=True)
        (place / TOO_LARGE_NAME).touch()
        return
    numbers = {address: number for number, address in enumerate(storages)}
    arguments = values | {
        key: CapturedTensor(
            numbers[tensor.untyped_storage().data_ptr()],
            tensor.dtype,
            int(tensor.storage_offset()),
            tuple(tensor.shape),
            tuple(tensor.stride()),
        )
        for key, tensor in tensors.items()
    }
    memories = tuple(_read_memory(storage) for storage in storages.values())
    try:
        data = pickle.dumps(CapturedLaunch(name, grid, arguments, memories))
    except (pickle.PicklingError, AttributeError, TypeError):
        return  # a function among the constants
    _write_launch(place, data, size, repr(mode))


def list_captured(folder: Path, kernel: str) -> list[CapturedLaunch]:
    """Read the launches of a kernel, the smallest first."""
    files = sorted(get_kernel_folder(folder, kernel).glob("*-*"), key=_read_size)
    launches = [pickle.loads(file.read_bytes()) for file in files if file.name != TOO_LARGE_NAME]
    return [launch for launch in launches if launch.kernel == kernel]


def was_too_large(folder: Path, kernel: str) -> bool:
    return (get_kernel_folder(folder, kernel) / TOO_LARGE_NAME).exists()


def _read_memory(storage: torch.UntypedStorage) -> bytes:
    return ctypes.string_at(storage.data_ptr(), storage.nbytes())  # also of the virtual GPU


def _read_size(file: Path) -> int:
    head = file.name.partition("-")[0]
    return int(head) if head.isdigit() else 0


def _write_launch(place: Path, data: bytes, size: int, mode: str) -> None:
    """Write a launch; where its mode or kernel has enough, it takes the place of a larger one."""
    mode_key = hashlib.sha256(mode.encode()).hexdigest()[:8]
    name = f"{size:09d}-{mode_key}-{hashlib.sha256(data).hexdigest()[:16]}"
    place.mkdir(parents=True, exist_ok=True)
    known = {file.name for file in _iterate_launch_files(place)}
    if name in known:
        return
    same_mode = sorted(each for each in known if each.split("-")[1] == mode_key)
    full = same_mode if len(same_mode) >= MAX_MODE_LAUNCHES else sorted(known)
    if len(same_mode) >= MAX_MODE_LAUNCHES or len(known) >= MAX_LAUNCHES:
        if full[-1] <= name:
            return
        with contextlib.suppress(FileNotFoundError):  # another process did it
            (place / full[-1]).unlink()
    write_atomically(place / name, data)


def _iterate_launch_files(place: Path) -> Iterator[Path]:
    return (file for file in place.iterdir() if file.name.count("-") == 2 and file.name[0] != ".")
