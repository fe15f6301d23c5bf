"""Builds toggles from fixes: reads a diff, finds its two forms, ports them to all releases."""
