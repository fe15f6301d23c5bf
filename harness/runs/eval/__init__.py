"""Evaluations: a served configuration, its items, and what the difference of two of them means."""
