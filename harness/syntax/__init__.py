"""Python code as structure: patterns, and places by their qualified names."""
