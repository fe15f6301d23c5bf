"""A small package that stands in for SGLang, so that the engine is tested without it."""
