"""Fuzzing: suites driven for as long as a budget lasts, and what is kept of what fails."""
