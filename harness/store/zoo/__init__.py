"""Stored runs of `unfix zoo`."""
