"""How far a kernel's results may be from a GPU's, and what a kernel does that is not exact.

CUDA specifies the results of most operations to the bit. Of others it documents a bound:
approximate instructions (`ex2.approx`), and products of float32 in tf32.
"""

from __future__ import annotations

from enum import Enum

TF32_PRODUCTS = "tl.dot in tf32, computed in float32"


class Arithmetic(Enum):
    SPECIFIED = "specified"  # approximate instructions within their bound; tf32 is refused
    EXACT = "exact"  # products of float32 are exact; approximate instructions are refused
    CLOSE = "close"  # both are answered, within their bounds

    @property
    def answers_approximations(self) -> bool:
        return self is not Arithmetic.EXACT

    @property
    def answers_tf32(self) -> bool:
        return self is not Arithmetic.SPECIFIED
