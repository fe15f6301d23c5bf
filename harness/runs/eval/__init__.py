"""Evaluations: served configurations, the answers to their items, and comparisons of two."""
