"""Stands in for sgl_kernel, SGLang's CUDA binaries, which attention backends import by name."""

from _refusing import stand_in

stand_in(__name__)
