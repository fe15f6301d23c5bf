"""Triton kernels: read as data, compiled with checks for a CPU or a GPU, and reported on.

Nothing is imported here: a process under check loads parts of this package before anything else.
"""
