"""`pytest -p unfix_check`: each test with its kernels under check. Found through PYTHONPATH.

This folder is on PYTHONPATH under `unfix exec`, and the checkout above it is not: its tests and
fixtures would be importable beside those of the suite. So the package is loaded by its file.
"""

import importlib.util
import os
import sys

if "harness" not in sys.modules:  # another checkout may be on the path
    _folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    _spec = importlib.util.spec_from_file_location(
        "harness", os.path.join(_folder, "__init__.py"), submodule_search_locations=[_folder]
    )
    assert _spec is not None
    assert _spec.loader is not None
    sys.modules["harness"] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules["harness"])

pytest_plugins = ("harness.sanitizer.pytest_options",)
