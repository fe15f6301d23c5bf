"""Kernels as this machine's own code: compiled from their graphs, with every check built in."""

from harness.kernels.cpu.number_formats import UnsupportedOnCpu, size_of
from harness.kernels.cpu.program_cache import (
    CompiledProgram,
    get_jit,
    list_loaded_programs,
    load_program,
    preload_programs,
)

__all__ = [
    "CompiledProgram",
    "UnsupportedOnCpu",
    "get_jit",
    "list_loaded_programs",
    "load_program",
    "preload_programs",
    "size_of",
]
