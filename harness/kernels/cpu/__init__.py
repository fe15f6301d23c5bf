"""The CPU's back end: kernels compiled from their graphs for this machine, with all checks."""

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
