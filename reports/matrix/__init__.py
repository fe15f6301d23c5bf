"""Reports of a matrix run."""
