"""CUDA extensions that were built before: imported, or loaded by `torch.ops.load_library`.

One that `setup.py` built on the virtual GPU (`unfix exec --device virtual --cuda-kernels -- pip
install …`) has a mark with its sources; its functions and operators become host calls. Any other
has no PTX with lines, or needs libtorch_cuda: it is named as unchecked.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import mmap
import re
import sys
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from typing import Any

from harness.sanitizer.cuda.host_signatures import find_parameter_names
from harness.sanitizer.device.record import RECORD
from harness.sanitizer.plugins.for_torch import extensions

_CUDA_CODE = re.compile(rb"__cudaRegisterFatBinary\0")
_MARK = re.compile(re.escape(extensions.BUILD_MARK.encode()) + rb"([^\0]*)")
_HOW = "unfix exec --device virtual --cuda-kernels -- pip install --no-build-isolation …"


def find_sources(file: str) -> list[str] | None:
    """Find the sources of a CUDA extension; none are known of one that was not built for this."""
    try:
        with open(file, "rb") as opened:
            bytes_ = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):
        return None
    with bytes_:
        if _CUDA_CODE.search(bytes_) is None:
            return None
        mark = _MARK.search(bytes_)
        return mark[1].decode().splitlines() if mark else []


def _name_unchecked(name: str, file: str) -> str:
    words = f"{name} is not checked: {file} was built for a GPU; build it again ({_HOW})"
    RECORD.count_refusal(words)
    print(f"unfix: {words}", file=sys.stderr)
    return words


@functools.cache
def hook_imports() -> None:
    """Check the functions of each CUDA extension that Python imports from now on."""
    create, execute = ExtensionFileLoader.create_module, ExtensionFileLoader.exec_module

    @functools.wraps(create)
    def create_module(loader: Any, spec: Any) -> Any:
        spec.loader_state = sources = find_sources(loader.path)
        if sources:
            extensions.prepare_launches()
            with extensions.check_new_operators():
                return create(loader, spec)
        words = "" if sources is None else _name_unchecked(spec.name, loader.path)
        try:
            return create(loader, spec)
        except ImportError as error:
            if not words:
                raise
            raise ImportError(f"{error}; {words}", name=spec.name, path=loader.path) from error

    @functools.wraps(execute)
    def exec_module(loader: Any, module: Any) -> None:
        execute(loader, module)
        sources = module.__spec__.loader_state or ()
        for name, value in list(vars(module).items()) if sources else ():
            if inspect.isbuiltin(value):
                full, names = f"{module.__name__}.{name}", find_parameter_names(name, sources)
                setattr(module, name, extensions.make_host_call(full, names, value))

    loader: Any = ExtensionFileLoader
    loader.create_module, loader.exec_module = create_module, exec_module


def hook_loads(operators: Any) -> None:
    """Check the operators of each CUDA library that torch loads from now on."""
    load = operators._Ops.load_library

    @functools.wraps(load)
    def load_library(ops: Any, path: Any) -> None:
        sources = find_sources(str(path))
        if sources:
            extensions.prepare_launches()
        elif sources is not None:
            _name_unchecked(Path(path).name, str(path))
        with extensions.check_new_operators() if sources else contextlib.nullcontext():
            load(ops, path)

    operators._Ops.load_library = load_library
