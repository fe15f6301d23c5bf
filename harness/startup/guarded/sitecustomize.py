"""On PYTHONPATH in what a guard starts: notes an SGLang that is imported without toggles.

A live toggle is in the guard's own process and its forks. A Python that the guard starts imports
SGLang as it is on disk, so the two are no two sides of a comparison.
"""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder

_here = os.path.dirname(os.path.abspath(__file__))
_NOTE = "imported-without-toggles"  # in the folder of the attestations


class _Note:
    """Finds no module."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        folder = os.environ.get("UNFIX_ATTESTATIONS", "")
        toggles = ("SGLANG_DEBUG_REVERT_PR", "SGLANG_DEBUG_ENABLE_PR", "UNFIX_REVERT")
        if name == "sglang" and os.path.isdir(folder):
            sys.meta_path.remove(self)
            if not any(os.environ.get(variable, "0").strip("0|") for variable in toggles):
                open(os.path.join(folder, _NOTE), "w").close()


sys.meta_path.insert(0, _Note())
_rest = [entry for entry in sys.path if os.path.abspath(entry or ".") != _here]
_spec = PathFinder.find_spec("sitecustomize", _rest)
if _spec is not None and _spec.loader is not None:
    _module = importlib.util.module_from_spec(_spec)
    sys.modules["sitecustomize"] = _module
    _spec.loader.exec_module(_module)
