"""Stored evaluations of `unfix eval`."""
