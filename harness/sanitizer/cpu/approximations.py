"""Instructions and functions that CUDA specifies by an error bound, computed to the nearest.

A value is computed in float64 and rounded once, so it lies within the documented bound of the true
result: 2 units in the last place for `ex2.approx`, 2**-22 for `lg2.approx`, 2**-11 for
`tanh.approx` (PTX ISA, "Floating Point Instructions"). A GPU's own value lies within the bound,
too, and may be another one.
"""

from __future__ import annotations

import re

from harness.sanitizer.llvm.text import LlvmFunction

_LIMIT_OF_DIVISORS = "0x47D0000000000000"  # 2**126: above it `div.approx` gives 0

# Steps in float64: `{0}` and `{1}` are the operands, `{v0}` is the result of the first step.
_STEPS: dict[str, tuple[str, ...]] = {
    "lg2": ("call double @log2(double {0})",),
    "sin": ("call double @sin(double {0})",),
    "cos": ("call double @cos(double {0})",),
    "tan": ("call double @tan(double {0})",),
    "tanh": ("call double @tanh(double {0})",),
    "exp": ("call double @exp(double {0})",),
    "exp10": ("call double @pow(double 10.0, double {0})",),
    "log": ("call double @log(double {0})",),
    "log10": ("call double @log10(double {0})",),
    "pow": ("call double @pow(double {0}, double {1})",),
    "div": (
        "fdiv double {0}, {1}",
        "call double @llvm.fabs.f64(double {1})",
        f"fcmp ogt double {{v1}}, {_LIMIT_OF_DIVISORS}",
        "fcmp one double {v1}, 0x7FF0000000000000",
        "and i1 {v2}, {v3}",
        "fmul double {0}, 0.0",
        "select i1 {v4}, double {v5}, double {v0}",
    ),
}
_INSTRUCTION = re.compile(
    r"(ex2|lg2|sin|cos|tanh|rcp|sqrt|rsqrt|div)\.(approx|full)(\.ftz)?\.(f32|f16|bf16)(x2)?"
)
# libdevice's `__nv_fast_expf`, by their rule.
FAST_FUNCTIONS = {
    f"fast_{name}f": rule
    for name, rule in {
        **{name: name for name in "sin cos tan exp exp10 log log10 pow tanh".split()},
        "log2": "lg2",
        "fdivide": "div",
    }.items()
}


def is_approximate(opcode: str) -> bool:
    return _INSTRUCTION.fullmatch(opcode) is not None


def emit_approximation(code: LlvmFunction, rule: str, operands: list[str]) -> str:
    wide = [code.let(f"fpext float {value} to double") for value in operands]
    return code.let(f"fptrunc double {code.let_steps(_STEPS[rule], wide)} to float")
