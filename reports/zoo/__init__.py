"""Reports of a zoo run."""
