"""Copied into every managed release: applies toggles there when a variable asks for them.

It finds the engine by what `unfix releases add` wrote down. The line of the `.pth` file that
imports this ends the process on any error.
"""

import importlib.util
import json
import os
import sys

with open(os.path.join(sys.prefix, "unfix-complete.json")) as file:
    facts = json.load(file)
os.environ.setdefault("UNFIX_PLANNER", facts["planner"])
os.environ.setdefault("UNFIX_HOME", facts["home"])
if "harness" not in sys.modules:
    spec = importlib.util.spec_from_file_location(
        "harness",
        os.path.join(facts["engine"], "__init__.py"),
        submodule_search_locations=[facts["engine"]],
    )
    assert spec is not None
    assert spec.loader is not None
    harness = importlib.util.module_from_spec(spec)
    sys.modules["harness"] = harness
    spec.loader.exec_module(harness)

from harness.patching import boot

boot.install()
