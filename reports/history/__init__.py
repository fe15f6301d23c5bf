"""Reports of the nights."""
