"""Stored runs of `unfix mutate`."""
