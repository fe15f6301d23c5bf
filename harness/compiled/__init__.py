"""Checks inside of the kernels that a GPU runs: a graph with them written in, and what they report.

`rewriting` turns a graph into one with checks, `accesses` puts them in front of each access;
`twins` follows wraps, `reaches` what pointers point into, `fences` what a program may touch;
`reporting` is the part that is a GPU's own assembly. `launching` launches what `triton_side` has
Triton compile, `arena` knows where reports lie, `known` what memory there is.
"""

CHECKS = ("bounds", "wraps")
