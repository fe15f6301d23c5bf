"""Fuzzing: runs suites for a budget of time, and shrinks and stores their failures."""
