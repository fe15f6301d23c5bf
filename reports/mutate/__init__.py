"""Reports of a mutation run."""
