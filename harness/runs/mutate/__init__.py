"""Mutation testing: makes faults of known kinds in SGLang and runs the suites against them."""
