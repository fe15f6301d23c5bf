"""Mutation testing: faults of known kinds in SGLang, and which of them the suites detect."""
