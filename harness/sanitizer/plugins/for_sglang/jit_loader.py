"""SGLang's own `load_jit` on the virtual GPU: nvcc and host code are real, launches come here.

Modules are built for the virtual card as PTX alone, with source lines. Host code, which only
launches, is compiled without optimization: that takes half the time. Builds lie in SGLang's own
cache, keyed by source, flags, compilers and all included files; it is `.releases/cuda-builds/jit`,
unless SGLANG_JIT_CACHE_DIR names another folder. Checkouts that share `.releases` by a link share
the builds: the link's own path is no part of a key.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import Any

import torch

from harness.core import paths
from harness.core.after_import import call_after_import, rebind_in_all_modules
from harness.core.errors import UnfixError
from harness.core.preparation import announce_preparation
from harness.sanitizer.cuda import cudart
from harness.sanitizer.cuda.host_calls import CALLS
from harness.sanitizer.device.cards import get_card
from harness.sanitizer.hooks import HOOKS
from harness.sanitizer.plugins.for_sglang import device_hooks
from harness.sanitizer.plugins.for_sglang.cached_answers import (
    KERNELS_PACKAGE,
    iterate_answer_maps,
    register_answers,
)
from harness.sanitizer.plugins.for_sglang.cuda_module import CudaModule
from harness.sanitizer.plugins.for_sglang.recorded_builds import is_recording_builds, record_build
from harness.sanitizer.plugins.for_sglang.separate_names import choose_name_flags

CACHE_VARIABLE = "SGLANG_JIT_CACHE_DIR"  # SGLang's own
_LOADER = "sglang.kernels.jit.utils.compile.loader"
_TOOLCHAIN = "sglang.kernels.jit.utils.compile.toolchain"
_CACHE = "sglang.kernels.jit.utils.compile.cache"
_NINJA = "sglang.kernels.jit.utils.compile.ninja"
_DEPENDENCIES = "sglang.kernels.jit.utils.deps"
_ARCHITECTURE = "sglang.kernels.jit.utils.arch"
_CAPSULE_NAME = b"dlpack_exchange_api"
# Of eight bytes each: the version, the older table, four functions, and the one for streams.
_FIELD_COUNT = 7
_CUDA_FLAGS = re.compile(r"^cudaflags = .*$", re.MULTILINE)
_OPTIMIZATION = re.compile(r" -O\d(?!\S)")


_installed = False


def is_installed() -> bool:
    """Return whether this process builds SGLang's JIT modules."""
    return _installed


def has_own_loader() -> bool:
    """Return whether the SGLang of this process builds with ninja, as since 0.5.18."""
    try:
        return importlib.util.find_spec(_LOADER) is not None
    except ModuleNotFoundError:
        return False


def install_loader(beside_stand_ins: bool = False) -> None:
    """Build and run SGLang's JIT modules in this process, from their first use on.

    Beside stand-ins SGLang gets these, and `JitBuild.load_own` gives the module.
    """
    global _installed
    if not beside_stand_ins:
        device_hooks.leave_load_jit()
    if _installed:
        return
    cudart.install_cudart(get_card(), CALLS)
    HOOKS.find_toolkit().set_variables(os.environ)
    os.environ.setdefault(CACHE_VARIABLE, str(paths.cuda_builds_folder() / "jit"))
    _answer_stream_queries()
    HOOKS.sees_cuda_launches = True
    _forget_answers()
    call_after_import(
        {
            _ARCHITECTURE: _choose_architecture,
            _TOOLCHAIN: _choose_flags,
            _NINJA: _choose_host_flags,
            _CACHE: _leave_links_out_of_keys,
            _LOADER: _wrap_loaded_modules,
            _DEPENDENCIES: functools.partial(_find_headers, may_install=not beside_stand_ins),
        }
    )
    _installed = True


def _forget_answers() -> None:
    """Empty SGLang's caches of what it asked the device, and of modules, before this device."""
    for name, module in list(sys.modules.items()):
        if name.startswith(KERNELS_PACKAGE):
            for answers in iterate_answer_maps(module):
                answers.clear()


def _choose_architecture(arch: Any) -> None:
    """Build for the card, also where SGLang was imported before there was one."""
    arch.is_cuda = lambda: True  # or --use_fast_math is left out


def _choose_flags(toolchain: Any) -> None:
    def target_flags() -> list[str]:
        arch = toolchain.get_jit_cuda_arch()
        target = f"compute_{arch.major}{arch.minor}{arch.suffix}"
        return [f"-gencode=arch={target},code={target}", "-lineinfo", "--no-compress"]

    toolchain.target_flags = target_flags


def _choose_host_flags(ninja: Any) -> None:
    """Leave out nvcc's flags of optimization, which are about host code alone, not about PTX.

    Two builds of one source are in one process where a toggle changes it; flags keep them apart.
    """
    generate = ninja.generate

    def generate_plain(spec: Any) -> str:
        text, count = _CUDA_FLAGS.subn(
            lambda line: " ".join([_OPTIMIZATION.sub("", line.group()), *choose_name_flags(ninja)]),
            generate(spec),
        )
        if count > 1 or (count == 0 and ".cu" in text):
            raise UnfixError(f"SGLang's build file has {count} lines of `cudaflags`, and not one")
        return text

    ninja.generate = generate_plain


def _find_headers(dependencies: Any, may_install: bool) -> None:
    """Answer where FlashInfer's package is by its headers alone: nothing can import it."""
    find_package_root = getattr(dependencies, "_find_package_root", None)
    if find_package_root is None:
        return

    def find_package_or_headers(package: str) -> Path | None:
        found: Path | None = find_package_root(package)
        if found is None and package == "flashinfer":
            found = HOOKS.find_headers(may_install)
        return found

    dependencies._find_package_root = find_package_or_headers


def _leave_links_out_of_keys(cache: Any) -> None:
    """Replace the path of a link to `.releases` in keys, as SGLang does with what it leads to."""
    find_roots = getattr(cache, "_anchor_roots", None)
    if find_roots is not None:
        headers = ("cuda-headers", (paths.releases_folder() / "cuda-headers").resolve())
        cache._anchor_roots = functools.cache(lambda: add_linked_roots([headers, *find_roots()]))


def add_linked_roots(roots: Iterable[tuple[str, Path]]) -> tuple[tuple[str, Path], ...]:
    """Add the roots inside of `.releases` as this checkout names them; the longest come first."""
    named = paths.releases_folder()
    real = named.resolve()
    known = list(roots)
    linked = [
        (token, named / root.relative_to(real))
        for token, root in known
        if root.is_relative_to(real) and named != real
    ]
    return tuple(sorted([*known, *linked], key=lambda one: len(str(one[1])), reverse=True))


def _wrap_loaded_modules(loader: Any) -> None:
    load_jit = loader.load_jit
    known: dict[str, CudaModule] = {}  # SGLang asks again if a loader's arguments are spelt anew
    register_answers(known)

    def load_cuda_module(
        *args: str, cuda_wrappers: Any = None, cpp_wrappers: Any = None, **options: Any
    ) -> Any:
        wrappers = {"cuda_wrappers": cuda_wrappers, "cpp_wrappers": cpp_wrappers}
        if not device_hooks.loads_own_modules():
            return load_jit(*args, **wrappers, **options)
        key = _describe_module((args, cuda_wrappers, cpp_wrappers, sorted(options.items())))
        if key in known and not is_recording_builds():
            return known[key]
        with announce_preparation():
            module = load_jit(*args, **wrappers, **options)
        if not options.get("cuda_files"):
            return module  # host code alone
        build = record_build()
        exports = dict([*(cuda_wrappers or ()), *(cpp_wrappers or ())])
        files = loader.resolve_sources(options["cuda_files"])
        loaded = CudaModule(module, "_".join(map(str, args)), exports, files, build)
        if key is not None:
            known[key] = loaded
        return loaded

    rebind_in_all_modules("load_jit", load_jit, load_cuda_module)


def _describe_module(request: Any) -> str | None:
    """Describe what `load_jit` is asked for and what it would build for; None without a plain form.

    SGLang's own flags name the architecture, which `override_jit_cuda_arch` changes for a block.
    """
    if not _is_plain(request):
        return None
    architecture, toolchain = (
        importlib.import_module(name) for name in (_ARCHITECTURE, _TOOLCHAIN)
    )
    flags = architecture.get_default_target_flags(), toolchain.target_flags()
    return repr((request, get_card(), flags))


def _is_plain(value: Any) -> bool:
    """Return whether the words for a value are those of no other value."""
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, str | int | float | PurePath | None)


def _answer_stream_queries() -> None:
    """Give tvm-ffi a stream for device tensors: torch's own answer needs a torch with CUDA."""
    get_pointer, make = ctypes.pythonapi.PyCapsule_GetPointer, ctypes.pythonapi.PyCapsule_New
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    make.restype = ctypes.py_object
    make.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    tensor: Any = torch.Tensor
    address = get_pointer(tensor.__dlpack_c_exchange_api__, _CAPSULE_NAME)
    table = (ctypes.c_uint64 * _FIELD_COUNT).from_buffer_copy(
        ctypes.string_at(address, 8 * _FIELD_COUNT)
    )
    table[_FIELD_COUNT - 1] = cudart.get_stream_function()
    _tables.append(table)
    tensor.__dlpack_c_exchange_api__ = make(ctypes.addressof(table), _CAPSULE_NAME, None)


_tables: list[Any] = []  # which tvm-ffi points at
