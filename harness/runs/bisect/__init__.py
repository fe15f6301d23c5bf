"""Searches over toggles, releases and commits for the cause of a symptom."""
