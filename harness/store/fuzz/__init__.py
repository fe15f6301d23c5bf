"""Fuzzing runs, kept."""
