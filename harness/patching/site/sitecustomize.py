"""Put on PYTHONPATH by `unfix exec`: applies toggles, then runs the sitecustomize it stands before."""

import importlib.util
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))


def _apply_toggles() -> None:
    package = os.path.dirname(os.path.dirname(_here))
    if "harness" not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            "harness", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
        )
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["harness"] = module
        spec.loader.exec_module(module)
    from harness.patching import boot

    boot.install()


def _run_the_next() -> None:
    rest = [entry for entry in sys.path if os.path.abspath(entry or ".") != _here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if any(os.environ.get(n) for n in ("SGLANG_DEBUG_REVERT_PR", "SGLANG_DEBUG_ENABLE_PR", "UNFIX_REVERT")):
    _apply_toggles()
_run_the_next()
