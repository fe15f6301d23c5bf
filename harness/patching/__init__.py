"""Applying a patch plan to a process, at import or live.

The planner needs parsers and runs in unfix's own environment. The modules that run inside a
patched process at import (`bootstrap`, `import_hook`, `instrumentation`, `attestation`) use only
the standard library and run on any Python from 3.10 on, so a release's environment needs no
dependency of unfix.
"""
