"""Searches, kept."""
