"""Stored runs of `unfix matrix`."""
