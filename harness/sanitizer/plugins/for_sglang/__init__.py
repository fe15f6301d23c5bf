"""SGLang under check: stand-ins for its CUDA binaries, and its CUDA C++ kernels on this CPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from harness.core.after_import import AfterImport
from harness.sanitizer.plugins import CollectiveClass, SanitizerPlugin

_NCCL = CollectiveClass(
    "sglang.srt.distributed.device_communicators.pynccl",
    "PyNcclCommunicator",
    {
        "all_reduce": (("tensor",), (0,)),
        "outplace_all_reduce": (("in_tensor", "out_tensor"), (1,)),
        "all_gather": (("output_tensor", "input_tensor"), (0,)),
        "reduce_scatter": (("output_tensor", "input_tensor"), (0,)),
        "broadcast": (("tensor",), (0,)),
        "send": (("tensor",), ()),
        "recv": (("tensor",), (0,)),
    },
)


def _install_on_device() -> None:
    from harness.sanitizer.plugins.for_sglang import device_hooks, operators, packages

    # Nothing is compiled for a GPU here.
    os.environ.setdefault("SGLANG_JIT_DEEPGEMM_PRECOMPILE", "0")
    operators.load_stand_ins()
    packages.install_packages()
    device_hooks.install_hooks()


def _build_cuda_kernels() -> None:
    from harness.sanitizer.plugins.for_sglang import jit_loader

    jit_loader.install_loader()


def _find_shapes() -> Mapping[str, Callable[..., Any]]:
    from harness.sanitizer.plugins.for_sglang import dry_run_operators

    return dry_run_operators.SHAPES


def _find_loader_hooks() -> Mapping[str, AfterImport]:
    from harness.sanitizer.plugins.for_sglang import checked_loader

    return checked_loader.HOOKS


def _describe_work() -> str:
    from harness.sanitizer.plugins.for_sglang import last_forward

    return last_forward.describe()


PLUGIN = SanitizerPlugin(
    operator_namespaces=("sgl_kernel", "sglang"),
    kernel_namespaces=("sglang", "device", "host"),
    build_folders={"SGLANG_JIT_CACHE_DIR": "sglang", "SGLANG_DG_CACHE_DIR": "deep-gemm"},
    collectives=(_NCCL,),
    install_on_device=_install_on_device,
    build_cuda_kernels=_build_cuda_kernels,
    find_shapes=_find_shapes,
    find_loader_hooks=_find_loader_hooks,
    describe_work=_describe_work,
)
