"""A search, shown."""
