"""`unfix fuzz`."""
