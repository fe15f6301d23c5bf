"""Reports of a rehearsal."""
