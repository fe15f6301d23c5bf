"""A matrix run, shown."""
