"""`unfix mutate`: the test of the suites by faults."""
