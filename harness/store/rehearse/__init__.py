"""Stored runs of `unfix rehearse`."""
