"""Values of tensors that a check leaves as they were.

A check of a CUDA call runs some blocks before the stand-in computes the whole call. What an
in-place kernel wrote in these blocks would be computed twice.

Example: after a check of `x += 1` in one block of ten, `x` is what it was.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch

from harness.sanitizer.device import dry_run
from harness.sanitizer.device.memory import to_host

# Elements up to which values are kept: no arithmetic gives larger ones any (`dry_run`).
_LARGEST_FLOATS, _LARGEST_INTEGERS = 1 << 22, dry_run.LARGEST_COMPUTED
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@contextlib.contextmanager
def restore_values(tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    """Leave tensors as they were, but for those that are too large to have values."""
    copies = [(words, words.clone()) for words in map(_view_words, filter(_has_values, tensors))]
    try:
        yield
    finally:
        for words, before in copies:
            if not torch.equal(words, before):  # writing alike would take memory of the machine
                words.copy_(before)


def _has_values(tensor: torch.Tensor) -> bool:
    limit = _LARGEST_FLOATS if tensor.is_floating_point() else _LARGEST_INTEGERS
    return tensor.is_cuda and tensor.numel() <= limit and tensor.element_size() in _WORDS


def _view_words(tensor: torch.Tensor) -> torch.Tensor:
    """View a tensor as integers, which equal themselves; each element of memory once."""
    words = to_host(tensor).view(_WORDS[tensor.element_size()])
    for side, stride in enumerate(words.stride()):
        if stride == 0:
            words = words.narrow(side, 0, min(1, words.shape[side]))
    return words
