"""Mutation runs, kept."""
