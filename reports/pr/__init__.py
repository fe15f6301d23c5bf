"""Reports of a review."""
