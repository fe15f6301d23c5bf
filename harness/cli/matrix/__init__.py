"""`unfix matrix`."""
