"""Everything private of pytest that the project uses, in one place.

`tests/test_adapters.py` runs each function on a real test: an upgrade of pytest that moves a name
fails there, by that name. `pyproject.toml` has the upper pin.
"""

from __future__ import annotations

from typing import Any

import pytest
from _pytest.config import ConftestImportFailure
from _pytest.mark.structures import get_unpacked_marks
from _pytest.runner import runtestprotocol
from _pytest.skipping import evaluate_skip_marks, evaluate_xfail_marks

__all__ = [
    "ConftestImportFailure",
    "get_own_arguments",
    "get_parameter",
    "get_unpacked_marks",
    "is_left_out",
    "remove_parameter_id",
    "run_phases",
]


def get_own_arguments(item: Any) -> dict[str, Any]:
    """Return the arguments that pytest calls a test with, once its fixtures are set up."""
    return {name: item.funcargs[name] for name in item._fixtureinfo.argnames}


def get_parameter(item: pytest.Item, name: str) -> Any:
    """Return the value of one of a test's parameters; None if it has no such parameter."""
    callspec: Any = getattr(item, "callspec", None)
    return callspec.params.get(name) if callspec is not None else None


def is_left_out(item: pytest.Item) -> bool:
    """Return whether a marker keeps a test from running: skip, or xfail(run=False)."""
    try:
        if evaluate_skip_marks(item) is not None:
            return True
        xfailed = evaluate_xfail_marks(item)
    except (Exception, pytest.fail.Exception):
        return True  # of a condition that cannot be evaluated: the test fails by it in its setup
    return xfailed is not None and not xfailed.run and not item.config.getoption("runxfail")


def run_phases(item: pytest.Item) -> None:
    """Set up, call and tear down a test, with all its fixtures, and report nothing."""
    runtestprotocol(item, log=False, nextitem=None)


def remove_parameter_id(item: Any, parameter_id: str) -> str:
    """Remove one parameter id from a test's node: `t.py::test[a-x]` becomes `t.py::test[a]`."""
    ids = list(item.callspec._idlist)
    ids.remove(parameter_id)
    own = item.originalname + (f"[{'-'.join(ids)}]" if ids else "")
    return f"{item.nodeid.removesuffix(item.name)}{own}"
