"""`unfix prove` and `unfix lifecycle`."""
