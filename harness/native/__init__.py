"""Kernels as this machine's own code: compiled from their graphs, with every check built in."""

from harness.native.formats import Refused, size_of
from harness.native.programs import Program, load, needed, program_of, ready

__all__ = ["Program", "Refused", "load", "needed", "program_of", "ready", "size_of"]
