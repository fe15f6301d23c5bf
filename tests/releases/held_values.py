"""Prints what SGLang's modules hold under the toggles of this process, applied live or at import.

Its arguments: the modules to import, and the toggles to revert and to enable live.
"""

from __future__ import annotations

import gc
import importlib
import json
import sys
import types
import warnings
from typing import Any

PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), range)
DEPTH = 4  # of containers and objects within each other


def describe_value(value: Any, depth: int = DEPTH) -> Any:
    """Describe data by its value, a function by its defaults, any other object by its type."""
    if isinstance(value, PLAIN) and type(value) in PLAIN:
        return repr(value)
    if isinstance(value, types.ModuleType) or depth == 0:
        return type(value).__name__
    if isinstance(value, (list, tuple)):
        return [describe_value(each, depth - 1) for each in value]
    if isinstance(value, (set, frozenset)):
        return sorted(json.dumps(describe_value(each, depth - 1)) for each in value)
    if isinstance(value, dict):
        return {
            str(describe_value(key, depth - 1)): describe_value(each, depth - 1)
            for key, each in list(value.items())
        }
    if isinstance(value, types.FunctionType):
        return describe_value([value.__defaults__, value.__kwdefaults__], depth - 1)
    kind = type(value)
    if isinstance(value, type) or kind.__module__.partition(".")[0] == "sglang":
        own = vars(value).items() if hasattr(value, "__dict__") else ()
        names = {name: each for name, each in own if not name.startswith("_")}
        return [kind.__qualname__, describe_value(names, depth - 1)]
    return kind.__qualname__


def describe_modules() -> dict[str, Any]:
    """Describe each name of each of SGLang's modules, a class and a function where it is made."""
    return {
        f"{name}:{key}": describe_value(value)
        for name, module in sorted(sys.modules.items())
        if name.partition(".")[0] == "sglang" and isinstance(module, types.ModuleType)
        for key, value in list(vars(module).items())
        if not key.startswith("__") and getattr(value, "__module__", name) == name
    }


def import_modules(names: list[str]) -> dict[str, str]:
    """Import modules; return what each import says, which is "ok" or an error."""
    outcomes = {}
    for name in names:
        try:
            importlib.import_module(name)
            outcomes[name] = "ok"
        except Exception as error:
            outcomes[name] = f"{type(error).__name__}: {error}"
    return outcomes


def main() -> None:
    gc.disable()  # a quarter of the imports' time
    warnings.simplefilter("ignore")
    modules, reverted, enabled = map(json.loads, sys.argv[1:])
    from harness import toggles  # before SGLang: it records what ran at import

    outcomes = import_modules(modules)
    if reverted:
        toggles.reverted(*reverted).__enter__()
    if enabled:
        toggles.enabled(*enabled).__enter__()
    print(json.dumps([outcomes, describe_modules()]))


if __name__ == "__main__":
    main()
