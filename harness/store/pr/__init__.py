"""Stored runs of `unfix pr`."""
