"""Defines the operators that torchvision requires, if its binary could not be loaded.

`import torchvision` fails with a torch without CUDA, since its wheel holds CUDA
binaries. The base environment names `define` as a `torch.backends` entry point, so torch calls it
once it is imported, and a process that never imports torch pays nothing.
"""

from __future__ import annotations

import sys
from typing import Any

SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"

_libraries: list[Any] = []  # a library that is garbage-collected removes its operators


class _AfterTheBinary:
    """Defines the operators after torchvision has tried to load its binary.

    If they were defined earlier, a binary that loads would define them again, and torch would abort
    the process.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "torchvision._meta_registrations":
            _define_missing()


def define() -> None:
    """Define the missing operators when torchvision is imported."""
    if _AfterTheBinary not in sys.meta_path:
        sys.meta_path.insert(0, _AfterTheBinary)


def _define_missing() -> None:
    import torch

    missing = [name for name in ("nms", "qnms") if not hasattr(torch.ops.torchvision, name)]
    if missing:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in missing:
            library.define(f"{name}{SCHEMA}")
        _libraries.append(library)
