"""Stored runs of `unfix fuzz`."""
