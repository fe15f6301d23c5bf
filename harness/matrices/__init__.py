"""Matrix files: one format for `unfix eval` and `unfix matrix`."""
