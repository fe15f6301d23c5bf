"""Defines the operators that torchvision looks for, where its binary could not be loaded.

`import torchvision` ends in an error beside a torch without CUDA, since its wheel holds CUDA
binaries. The base environment names `define` as a `torch.backends` entry point, so torch calls it
once it is imported, and a process that never imports torch pays nothing.
"""

from __future__ import annotations

from typing import Any

SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"

_kept: list[Any] = []  # a library that is collected takes its operators with it


def define() -> None:
    import torch

    missing = [name for name in ("nms", "qnms") if not hasattr(torch.ops.torchvision, name)]
    if missing:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in missing:
            library.define(f"{name}{SCHEMA}")
        _kept.append(library)
