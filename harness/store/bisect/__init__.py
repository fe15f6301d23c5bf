"""Stored searches of `unfix bisect`."""
