"""Checks inside of the kernels that a GPU runs: a graph with them written in, and what they report.

`rewriting` turns a graph into one with checks, `twins` follows wraps, `reporting` is the part
that is a GPU's own assembly; `launching` alone knows how Triton compiles and launches, `arena`
where reports lie.
"""

CHECKS = ("bounds", "wraps")
