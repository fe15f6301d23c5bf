"""Handmade outputs of an engine, and comparisons of two."""

from __future__ import annotations

from harness.runs.eval.token_divergence import TokenComparison, TokenOutput, compare_outputs

TOKENS = (5, 6, 7, 8)
SURE = (3.0, 3.0, 3.0, 3.0)


def make_output(
    tokens: tuple[int, ...] = TOKENS,
    logprobs: tuple[float, ...] | None = (-0.05, -0.05, -0.05, -0.05),
    margins: tuple[float, ...] | None = SURE,
    error: str = "",
) -> TokenOutput:
    return TokenOutput(tokens, logprobs, margins, error)


def make_tie(at: int, margin: float = 0.0, token: int | None = None) -> TokenOutput:
    """Return an output with two nearly equal tokens at a position; `token` is the chosen one."""
    tokens, logprobs, margins = list(TOKENS), [-0.05] * 4, list(SURE)
    logprobs[at], margins[at] = -0.7, margin
    if token is not None:
        tokens[at] = token
    return TokenOutput(tokens, logprobs, margins)


def compare_one(
    base: TokenOutput, candidate: TokenOutput, again: TokenOutput | None = None
) -> TokenComparison:
    repeat = base if again is None else again
    return compare_outputs({"a": base}, {"a": repeat}, {"a": candidate}, dtype="float32")
