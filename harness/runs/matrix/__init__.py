"""The configuration matrix: options that meet, planned as few cells, run anywhere."""
