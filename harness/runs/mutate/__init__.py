"""Faults of the known kinds, made anywhere in SGLang: what do the suites notice?"""
