"""Stands in for deep_gemm, whose kernels SGLang imports by name where it finds a GPU."""

from _refusing import stand_in

stand_in(__name__)
