"""The configuration matrix: combinations of options, planned as few cells, run anywhere."""
