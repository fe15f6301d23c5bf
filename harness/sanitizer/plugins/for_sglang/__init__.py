"""SGLang under check: stand-ins for its CUDA binaries, and its CUDA C++ kernels on this CPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from harness.sanitizer.plugins import SanitizerPlugin


def _install_on_device() -> None:
    from harness.sanitizer.plugins.for_sglang import device_hooks, operators, packages

    # Nothing is compiled for a GPU here.
    os.environ.setdefault("SGLANG_JIT_DEEPGEMM_PRECOMPILE", "0")
    operators.load_stand_ins()
    packages.install_packages()
    device_hooks.install_hooks()


def _find_shapes() -> Mapping[str, Callable[..., Any]]:
    from harness.sanitizer.plugins.for_sglang import dry_run_operators

    return dry_run_operators.SHAPES


def _build_cuda_kernels() -> None:
    from harness.sanitizer.plugins.for_sglang import jit_loader

    jit_loader.install_loader()


PLUGIN = SanitizerPlugin(
    install_on_device=_install_on_device,
    build_cuda_kernels=_build_cuda_kernels,
    find_shapes=_find_shapes,
)
