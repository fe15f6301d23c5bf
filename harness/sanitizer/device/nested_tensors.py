"""The tensors of a call's arguments or results, wherever they lie in lists and dictionaries."""

from __future__ import annotations

from typing import Any

import torch


def list_tensors(*values: Any) -> list[torch.Tensor]:
    tensors: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, dict):
            tensors += list_tensors(*value.values())
        elif isinstance(value, (list, tuple)):
            tensors += list_tensors(*value)
    return tensors
