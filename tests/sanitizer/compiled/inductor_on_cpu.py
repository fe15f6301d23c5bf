"""TorchInductor's GPU kernels on a machine without a GPU: as it writes them, run here.

Inductor writes Triton kernels for a CPU as well, which differ only in the device. A callback
receives them instead of the compiler and launcher.
"""

from __future__ import annotations

import importlib.util
import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
from torch._inductor import async_compile, config
from torch.utils import _triton
from triton.backends.compiler import GPUTarget

DEVICE = (
    "DeviceProperties(type='cuda', index=0, multi_processor_count=132, cc=90, major=9, "
    "regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, "
    "max_threads_per_block=1024, warp_size=32)"
)
_numbers = itertools.count()


@contextmanager
def observe_launches(
    folder: Path, launched: Callable[[Any, tuple[Any, ...]], None]
) -> Iterator[None]:
    """Pass each kernel that is compiled in this block, and its arguments, to this callback."""

    def kernel(self: Any, name: str, source: str, device_str: str = "cpu") -> Any:
        tuner = load_tuner(folder, name, source)
        return SimpleNamespace(run=lambda *args, **options: launched(tuner, args))

    target = SimpleNamespace(get_current_target=lambda: GPUTarget("cuda", 90, 32))
    target.get_current_device = lambda: 0
    # One thread: a pool would parse Python beside the test, which CPython 3.11 mixes up.
    anew = {"cpu_backend": "triton", "force_disable_caches": True, "compile_threads": 1}
    with pytest.MonkeyPatch.context() as patch, config.patch(anew):
        patch.setattr(triton.runtime.driver, "_active", target)
        patch.setattr(_triton, "has_triton", lambda *arguments: True)
        patch.setattr(async_compile.AsyncCompile, "triton", kernel)
        torch._dynamo.reset()
        yield
        torch._dynamo.reset()


def load_tuner(folder: Path, name: str, source: str) -> Any:
    """Load a kernel as Inductor does after compiling, with a launcher for its first config."""
    text = re.sub(r"DeviceProperties\(type='cpu'[^)]*\)", DEVICE, source)
    file = folder / f"inductor_on_cpu{next(_numbers)}.py"
    file.write_text(text.replace("triton_helpers.set_driver_to_cpu()\n", ""))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tuner = getattr(module, name)
    tuner.launchers = [SimpleNamespace(config=tuner.configs[0])]
    return tuner
