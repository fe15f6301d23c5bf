"""`unfix eval`."""
