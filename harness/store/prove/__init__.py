"""Stored runs of `unfix prove` and `unfix lifecycle`."""
