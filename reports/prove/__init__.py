"""A proof, shown."""
