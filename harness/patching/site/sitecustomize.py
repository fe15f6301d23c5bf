"""Put on PYTHONPATH by `unfix exec`: toggles and checks, then the next sitecustomize."""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder

_here = os.path.dirname(os.path.abspath(__file__))
_toggles = ("SGLANG_DEBUG_REVERT_PR", "SGLANG_DEBUG_ENABLE_PR")
_check = "UNFIX_CHECK"


def _apply() -> None:
    engine = os.path.dirname(os.path.dirname(_here))
    if "harness" not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            "harness", os.path.join(engine, "__init__.py"), submodule_search_locations=[engine]
        )
        assert spec is not None
        assert spec.loader is not None
        harness = importlib.util.module_from_spec(spec)
        sys.modules["harness"] = harness
        spec.loader.exec_module(harness)
    from harness.patching import boot
    from harness.watch import boot as checks

    boot.install()
    checks.install()


def _run_the_next() -> None:
    rest = [entry for entry in sys.path if os.path.abspath(entry or ".") != _here]
    spec = PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_asked = any(os.environ.get(name) for name in _toggles)
if _asked or os.environ.get(_check):
    try:
        _apply()
    except BaseException as error:
        what = "toggles cannot" if _asked else "checks cannot"
        sys.stderr.write(f"unfix: {what} be applied ({error!r})\n")
        sys.stderr.flush()
        os._exit(3)
_run_the_next()
