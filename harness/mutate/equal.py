"""Faults that are no faults: looked at, and the same as the original for a reason that is written.

They live in `suites/equal_faults.yaml` beside the suites that they would count against.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from harness import paths
from harness.errors import ToggleFileError
from harness.mutate import operators
from harness.registry.files import LinedDocument
from harness.registry.schema import ModuleTarget, Text
from harness.store.mutate.faults import Fault

PLACE = re.compile(r"\[(\d+)\](?:\.(\w+))?")


class Equal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One fault that changes nothing anyone could see, and why."""

    id: Annotated[str, Meta(pattern=r"^[0-9a-f]{10}\Z")]
    target: ModuleTarget
    operator: Text
    change: Text  # `BEFORE => AFTER`, for whoever reads the file
    because: Annotated[str, Meta(pattern=r"\S+\s+\S+\s+\S+")]  # a reason, not a word


def default() -> Path:
    return paths.project() / "suites" / "equal_faults.yaml"


def read(path: Path | None = None) -> dict[str, Equal]:
    """The faults of a file, by id; a file that is not there names none."""
    path = path or default()
    if not path.exists():
        return {}
    document = LinedDocument(path)
    values = [] if document.values is None else document.values
    if not isinstance(values, list):
        raise ToggleFileError(document.path, 1, "it is a list: each fault begins with '- id:'")
    try:
        faults = msgspec.convert(values, list[Equal], strict=True)
    except msgspec.ValidationError as error:
        raise _said(document, str(error)) from error
    found: dict[str, Equal] = {}
    for number, fault in enumerate(faults):
        if fault.id in found:
            line = document.line(number, "id")
            raise ToggleFileError(document.path, line, f"fault {fault.id} stands twice")
        if fault.operator not in operators.all():
            line = document.line(number, "operator")
            raise ToggleFileError(document.path, line, f"there is no operator '{fault.operator}'")
        found[fault.id] = fault
    return found


def lost(equal: Iterable[Equal], faults: Iterable[Fault], modules: Iterable[str]) -> list[Equal]:
    """Those whose module is among these, and which are no longer made: to be looked at again."""
    made, asked = {fault.id for fault in faults}, set(modules)
    return [e for e in equal if e.id not in made and e.target.partition(":")[0] in asked]


def entry(fault: Fault, because: str) -> Equal:
    """A fault as it stands in the file."""
    before, after = (" ".join(code.split()) for code in (fault.before, fault.after))
    return Equal(fault.id, fault.target, fault.operator, f"{before} => {after}", because)


def _said(document: LinedDocument, message: str) -> ToggleFileError:
    """msgspec's message with the line that it is about."""
    problem, _, where = message.partition(" - at `$")
    place = PLACE.search(where)
    steps: list[str | int] = []
    if place is not None:
        steps = [int(place[1]), *([place[2]] if place[2] else [])]
    unknown = re.search(r"unknown field `([^`]*)`", problem)
    if unknown:
        steps.append(unknown[1])
    problem = problem.replace("Object contains unknown field", "unknown key").replace(
        "Object missing required field", "missing key"
    )
    if steps[1:] == ["id"] and "got `int`" in problem:
        problem = "an id of digits alone stands in quotes: YAML reads a number"
    if "matching regex" in problem:
        problem = {
            "id": "an id is ten hexadecimal digits",
            "because": "say why in a sentence: nobody can look it up elsewhere",
        }.get(str(steps[-1]) if steps else "", "empty, or not of that form")
    return ToggleFileError(document.path, document.line(*steps), problem)
