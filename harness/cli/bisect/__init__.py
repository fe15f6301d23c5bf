"""`unfix bisect`."""
