"""`unfix mutate`."""
