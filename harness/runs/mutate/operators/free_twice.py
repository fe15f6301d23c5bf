"""What was given back is given back once more."""

from __future__ import annotations

from collections.abc import Iterator

from harness.fixes.registry.schema import Symptom
from harness.runs.mutate.function_code import CodeChange, FunctionCode, get_dotted_name
from harness.runs.mutate.operators.drop_free import list_freeing_statements

TITLE = "Free twice"
PRS = (27586, 38269)
SYMPTOM = Symptom.SILENT_CORRUPTION


def find_changes(function: FunctionCode) -> Iterator[CodeChange]:
    # One statement stays one, as for every fault.
    for node in list_freeing_statements(function):
        called = get_dotted_name(node.value.func)  # type: ignore[attr-defined]
        code = function.get_text(node)
        yield function.replace_node(node, f"({code}, {code})", f"{called} is called twice")
