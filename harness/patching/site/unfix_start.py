"""Copied into every managed release: applies toggles there when a variable asks for them.

It finds the engine by what `unfix releases add` wrote down, and ends the process if it cannot: a
`.pth` file's errors do not, and a fault that was asked for and is not there is worse than none.
"""

import importlib.util
import json
import os
import sys

try:
    with open(os.path.join(sys.prefix, "unfix-complete.json")) as file:
        facts = json.load(file)
    os.environ.setdefault("UNFIX_PYTHON", facts["planner"])
    os.environ.setdefault("UNFIX_HOME", facts["home"])
    if "harness" not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            "harness",
            os.path.join(facts["engine"], "__init__.py"),
            submodule_search_locations=[facts["engine"]],
        )
        assert spec is not None and spec.loader is not None
        harness = importlib.util.module_from_spec(spec)
        sys.modules["harness"] = harness
        spec.loader.exec_module(harness)
    from harness.patching import boot
except Exception as error:
    sys.stderr.write(f"unfix: toggles cannot be applied ({error!r}): run ./unfix releases add\n")
    sys.stderr.flush()
    os._exit(3)
boot.install()
