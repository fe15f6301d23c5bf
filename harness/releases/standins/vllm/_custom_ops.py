"""Holds `rotary_embedding`, which RotaryEmbedding imports and its native path never calls."""

from typing import NoReturn


def rotary_embedding(*args: object, **kwargs: object) -> NoReturn:
    raise RuntimeError("stand-in for vllm: rotary_embedding needs the real package on a GPU")
