"""Shared by the reports of all kinds: marks, tables, text, one HTML file, Markdown, a terminal."""
