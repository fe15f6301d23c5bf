"""A server under test: a real SGLang with its log, its readiness, its death and its end."""
