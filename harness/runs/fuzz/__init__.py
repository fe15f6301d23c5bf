"""Fuzzing: suites run for a budget of time, and their failures are shrunk and stored."""
