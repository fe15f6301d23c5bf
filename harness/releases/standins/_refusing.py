"""Loads the mechanism of stand-ins by its file: a program may have a `harness` of its own."""

import importlib.util
import os
import sys

_folder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_spec = importlib.util.spec_from_file_location(
    __name__, os.path.join(_folder, "core", "refusing_module.py")
)
assert _spec is not None
assert _spec.loader is not None
sys.modules[__name__] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(sys.modules[__name__])
