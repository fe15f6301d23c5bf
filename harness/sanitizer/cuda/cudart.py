"""The stand-in for libcudart.so.13 in this process: compiled once from cudart.c, loaded first.

A library that is loaded later and needs `libcudart.so.13` gets this one, since its name is loaded
already. Its hooks are functions of this module, which `install` takes.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from harness.core import paths
from harness.core.code_digest import compute_digest
from harness.core.errors import NotReadyError
from harness.sanitizer.cuda.c_compiler import call_compiler, find_c_compiler
from harness.sanitizer.device.cards import Card
from harness.sanitizer.hooks import HOOKS, BuildToolkit

_FOLDER = Path(__file__).parent
_SOURCE, _SYMBOL_MAP = _FOLDER / "cudart.c", _FOLDER / "libcudart.map"
_NAME = "libcudart.so.13"
_DEFINITION = re.compile(r"^\S.*?\b((?:__)?cuda[A-Z]\w*)\(", re.MULTILINE)


class _Dimensions(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint) for name in "xyz"]

    def as_tuple(self) -> tuple[int, int, int]:
        return self.x, self.y, self.z


class RawLaunch(ctypes.Structure):
    """`Launch` of cudart.c."""

    _fields_ = [
        ("entry", ctypes.c_char_p),
        ("fatbin", ctypes.c_void_p),
        ("arguments", ctypes.POINTER(ctypes.c_void_p)),
        ("shared_bytes", ctypes.c_uint64),
        ("max_shared_bytes", ctypes.c_uint64),
        ("grid", _Dimensions),
        ("block", _Dimensions),
        ("cluster", _Dimensions),
        ("is_cooperative", ctypes.c_int32),
    ]


_HOOK_TYPES = (
    ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(RawLaunch)),
    ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p),
    *[ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)] * 2,
    ctypes.CFUNCTYPE(None, ctypes.c_char_p),
    ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64),
)
_loaded: dict[str, Any] = {}  # the library and its hooks, which must stay alive


class RuntimeHooks(Protocol):
    """What answers the library's calls; a returned number is a cudaError_t."""

    def launch(self, launch: Any, /) -> int: ...

    def find_variable(self, fatbin: int, name: bytes, /) -> int: ...

    def get_static_shared(self, fatbin: int, entry: bytes, /) -> int: ...

    def get_most_threads(self, fatbin: int, entry: bytes, /) -> int: ...

    def report_unanswered(self, name: bytes, /) -> None: ...

    def check_copy(self, target: int, source: int | None, size: int, /) -> int: ...


def install_cudart(card: Card, calls: RuntimeHooks) -> None:
    """Load the library into this process and connect it; once for a process and its forks."""
    library = ctypes.CDLL(str(_build_library(HOOKS.find_toolkit())), mode=ctypes.RTLD_GLOBAL)
    functions: tuple[Callable[..., Any], ...] = (
        calls.launch,
        calls.find_variable,
        calls.get_static_shared,
        calls.get_most_threads,
        calls.report_unanswered,
        calls.check_copy,
    )
    hooks = [kind(function) for kind, function in zip(_HOOK_TYPES, functions, strict=True)]
    library.unfix_set_hooks(*hooks)
    _loaded.update(library=library, hooks=hooks)
    choose_card(card)


def choose_card(card: Card) -> None:
    """Answer with the attributes of a card from now on."""
    for attribute, value in _list_device_attributes(card).items():
        _loaded["library"].unfix_set_device_attribute(attribute, value)


def take_last_error() -> int:
    """Return this thread's last error and forget it, as CUDA's own function does."""
    error: int = _loaded["library"].cudaGetLastError()
    return error


def get_stream_function() -> int:
    """Return the address of the function that answers DLPack's question for a stream."""
    function = _loaded["library"].unfix_current_stream
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _list_device_attributes(card: Card) -> dict[int, int]:
    """Return the values of cudaDeviceAttr by its numbers."""
    major, minor = card.capability
    return {
        1: 1024,  # threads of a block
        2: 1024, 3: 1024, 4: 64,  # a block's dimensions
        5: 2**31 - 1, 6: 65535, 7: 65535,  # a grid's dimensions
        8: card.shared_memory_per_block,
        10: 32,  # threads of a warp
        12: card.registers_per_multiprocessor,  # registers of a block
        16: card.multiprocessors,
        38: card.l2_cache,
        39: card.threads_per_multiprocessor,
        75: major,
        76: minor,
        81: card.shared_memory_per_multiprocessor,
        82: card.registers_per_multiprocessor,
        95: 1,  # cooperative launches
        97: card.shared_memory_per_block_optin,
        106: 32,  # blocks of a multiprocessor
    }  # fmt: skip


def _build_library(toolkit: BuildToolkit) -> Path:
    compiler = find_c_compiler("the stand-in for libcudart")
    names = _list_unanswered_names(toolkit)
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout
    digest = compute_digest(
        _SOURCE.read_bytes(), _SYMBOL_MAP.read_bytes(), "\n".join(names), version
    )
    library = paths.cuda_builds_folder() / f"cudart-{digest[:16]}" / _NAME
    if library.exists():
        return library
    library.parent.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent.parent, prefix=".cudart-") as folder:
        stubs = "".join(f'Error {name}(void) {{ return refuse("{name}"); }}\n' for name in names)
        (Path(folder) / "unanswered.inc").write_text(stubs)
        words = "-x c -std=gnu11 -O1 -fPIC -shared -Wl,-soname".split()
        words[-1] += f",{_NAME},--version-script={_SYMBOL_MAP}"
        call_compiler([compiler, *words, f"-I{folder}", str(_SOURCE), "-o", f"{folder}/{_NAME}"])
        library.parent.mkdir(exist_ok=True)
        os.replace(f"{folder}/{_NAME}", library)  # another process may have built the same bytes
    return library


def _list_unanswered_names(toolkit: BuildToolkit) -> list[str]:
    """List the functions of the real libcudart that cudart.c does not define."""
    nm = shutil.which("nm")
    if nm is None:
        raise NotReadyError("there is no `nm`, which lists a library's functions: install binutils")
    places = (toolkit.home / name / _NAME for name in ("lib", "lib64"))
    real = next(place for place in places if place.exists())
    done = subprocess.run(
        [nm, "-D", "--defined-only", str(real)], capture_output=True, text=True, check=True
    )
    names = set(re.findall(r" T ((?:__)?cuda[A-Z]\w*)", done.stdout))
    return sorted(names - set(_DEFINITION.findall(_SOURCE.read_text())))
