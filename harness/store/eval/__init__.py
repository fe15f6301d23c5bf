"""Evaluations, kept."""
