"""A pytest plugin: the topk operators of sgl_kernel, as strict about their arguments as on a GPU.

The stand-in's operators take any topk. The compiled ones are built for one topk, for scores in
float32 rows and for one int32 length a row; with this plugin a CPU's reference refuses the same.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any
from unittest import mock

TOPK = 2048


def pytest_collection() -> None:
    """Replace the operators once the suites' settings are made, before a suite is imported."""
    import fixtures.release_modules
    from harness.core import device

    with (
        mock.patch.object(device, "get_device", return_value="cuda"),
        mock.patch.object(fixtures.release_modules, "is_stand_in", return_value=False),
    ):
        from fixtures.topk_offset import topk_kernels
    sys.modules.setdefault("flashinfer", ModuleType("flashinfer"))  # no guard reaches its kernels
    operators = vars(importlib.import_module("sgl_kernel"))
    for name, reference in topk_kernels._SGL_KERNEL_REFERENCES.items():
        operators[name] = _refuse_as_on_gpu(reference)


def _refuse_as_on_gpu(reference: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    @functools.wraps(reference)
    def call(score: Any, lengths: Any, *arguments: Any, **options: Any) -> Any:
        topk = options.get("topk", next((a for a in arguments if isinstance(a, int)), None))
        assert topk == TOPK, f"the operator is compiled for top {TOPK}, not {topk}"
        assert (score.dim(), score.stride(1), score.dtype) == (2, 1, torch.float32)
        assert (lengths.shape, lengths.dtype) == (score.shape[:1], torch.int32)
        assert lengths.is_contiguous()
        return reference(score, lengths, *arguments, **options)

    return call
