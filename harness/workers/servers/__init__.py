"""Servers under test: real SGLang servers, their start, readiness, failures and end."""
