"""Defines the operators that torchvision looks for, where its binary could not be loaded.

`import torchvision` ends in an error beside a torch without CUDA, since its wheel holds CUDA
binaries. Importing this module, which a .pth file does, costs one entry on sys.meta_path; torch
is touched only at the moment when torchvision, being imported, asks for its operators.
"""

from __future__ import annotations

import sys
from typing import Any

SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"

_kept: list[Any] = []  # a library that is collected takes its operators with it


class _OperatorsBeforeUse:
    """Acts when the module that registers the operators' shapes is looked up, and finds nothing."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "torchvision._meta_registrations":
            _define_missing()


def _define_missing() -> None:
    import torch

    missing = [name for name in ("nms", "qnms") if not hasattr(torch.ops.torchvision, name)]
    if missing:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in missing:
            library.define(f"{name}{SCHEMA}")
        _kept.append(library)


sys.meta_path.insert(0, _OperatorsBeforeUse)  # type: ignore[arg-type]
