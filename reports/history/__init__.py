"""The nights, shown."""
