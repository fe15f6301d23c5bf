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
    "ex2": ("call double @exp2(double {0})",),
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
    "rcp": ("fdiv double 1.0, {0}",),
    "sqrt": ("call double @llvm.sqrt.f64(double {0})",),
    "rsqrt": ("call double @llvm.sqrt.f64(double {0})", "fdiv double 1.0, {v0}"),
    "div": (
        "fdiv double {0}, {1}",
        "call double @llvm.fabs.f64(double {1})",
        f"fcmp ogt double {{v1}}, {_LIMIT_OF_DIVISORS}",
        "fcmp one double {v1}, 0x7FF0000000000000",
        "and i1 {v2}, {v3}",
        "fmul double {0}, 0.0",
        "select i1 {v4}, double {v5}, double {v0}",
    ),
    "full": ("fdiv double {0}, {1}",),
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


def find_approximate_rule(opcode: str) -> str | None:
    """Return the rule of an approximate instruction, such as "ex2" for `ex2.approx.ftz.f32`."""
    match = _INSTRUCTION.fullmatch(opcode)
    if match is None:
        return None
    return "full" if match[2] == "full" else match[1]


def emit_approximation(
    code: LlvmFunction, rule: str, operands: list[str], flush: bool = False
) -> str:
    """Emit a rule on floats; with `flush` a subnormal operand or result is a zero of its sign."""
    wide = []
    for value in operands:
        if flush:
            value = emit_flush(code, value)
        wide.append(code.let(f"fpext float {value} to double"))
    narrow = code.let(f"fptrunc double {code.let_steps(_STEPS[rule], wide)} to float")
    return emit_flush(code, narrow) if flush else narrow


def emit_flush(code: LlvmFunction, value: str) -> str:
    size = code.let(f"call float @llvm.fabs.f32(float {value})")
    is_subnormal = code.let(f"fcmp olt float {size}, 0x3810000000000000")  # 2**-126
    zero = code.let(f"call float @llvm.copysign.f32(float 0.0, float {value})")
    return code.let(f"select i1 {is_subnormal}, float {zero}, float {value}")
