"""A mutation run, shown."""
