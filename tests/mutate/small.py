"""Faults of small functions that are defined in the test."""

from __future__ import annotations

import difflib
import textwrap

from memory import Memory

from harness.fixes.registry.schema import CodeTarget
from harness.runs.mutate import operators
from harness.runs.mutate.fault_generation import generate_faults
from harness.store.mutate.faults import GeneratedFaults, MutationFault


def make_faults(code: str, *names: str, lines: set[int] | None = None) -> GeneratedFaults:
    """Generate faults of module `m` with the operators of these names, or with all."""
    chosen = [operators.load_operators()[name] for name in names] if names else None
    only = None if lines is None else {"m": lines}
    return generate_faults([CodeTarget("m", "")], Memory({"m": format_code(code)}), chosen, only)


CPP_MODULE = "sglang/kernels/jit/csrc/k.cuh"


def make_cpp_faults(code: str, *names: str) -> GeneratedFaults:
    """Generate faults of the C++ source k.cuh with the operators of these names."""
    chosen = [operators.load_operators()[name] for name in names] if names else None
    sources = Memory({CPP_MODULE: format_code(code)})
    return generate_faults([CodeTarget(CPP_MODULE, "")], sources, chosen)


def list_cpp_lines(code: str, *names: str) -> list[str]:
    """Return the new lines of each fault in C++."""
    return [
        list_new_lines(format_code(code), fault) for fault in make_cpp_faults(code, *names).faults
    ]


def format_code(code: str) -> str:
    return textwrap.dedent(code).lstrip("\n")


def list_changed_lines(code: str, *names: str) -> list[str]:
    """Return the new lines of each fault."""
    return [list_new_lines(format_code(code), fault) for fault in make_faults(code, *names).faults]


def list_new_lines(before: str, fault: MutationFault) -> str:
    after = fault.apply_to(before)
    differences = difflib.ndiff(before.split("\n"), after.split("\n"))
    return "\n".join(line[2:].strip() for line in differences if line.startswith("+ "))
