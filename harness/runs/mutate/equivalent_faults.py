"""Equivalent faults, each recorded with the reason why no test can detect it.

They are in `suites/equal_faults.yaml`, beside the suites whose score they would lower.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from harness.core import paths
from harness.core.located_yaml import SafeYamlFile, YamlFileError
from harness.fixes.registry.schema import ModuleTarget, Text
from harness.runs.mutate import operators
from harness.store.mutate.faults import MutationFault

ERROR_POSITION = re.compile(r"\[(\d+)\](?:\.(\w+))?")


class EquivalentFault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One equivalent fault, and the reason."""

    id: Annotated[str, Meta(pattern=r"^[0-9a-f]{10}\Z")]
    target: ModuleTarget
    operator: Text
    change: Text  # `BEFORE => AFTER`, for readers of the file
    because: Annotated[str, Meta(pattern=r"\S+\s+\S+\s+\S+")]  # a reason of at least three words


def get_equivalents_file() -> Path:
    return paths.project_folder() / "suites" / "equal_faults.yaml"


def read_equivalent_faults(path: Path | None = None) -> dict[str, EquivalentFault]:
    """Read the faults of a file, by id; a missing file has none."""
    path = path or get_equivalents_file()
    if not path.exists():
        return {}
    document = SafeYamlFile(path)
    values = [] if document.values is None else document.values
    if not isinstance(values, list):
        raise YamlFileError(document.path, 1, "it is a list: each fault begins with '- id:'")
    try:
        faults = msgspec.convert(values, list[EquivalentFault], strict=True)
    except msgspec.ValidationError as error:
        raise _make_file_error(document, str(error)) from error
    faults_by_id: dict[str, EquivalentFault] = {}
    for number, fault in enumerate(faults):
        if fault.id in faults_by_id:
            line = document.find_line(number, "id")
            raise YamlFileError(document.path, line, f"fault {fault.id} stands twice")
        if fault.operator not in operators.load_operators():
            line = document.find_line(number, "operator")
            raise YamlFileError(document.path, line, f"there is no operator '{fault.operator}'")
        faults_by_id[fault.id] = fault
    return faults_by_id


def find_vanished_faults(
    equivalents: Iterable[EquivalentFault], faults: Iterable[MutationFault], modules: Iterable[str]
) -> list[EquivalentFault]:
    """Return recorded faults of these modules that are no longer generated, for a new judgement."""
    ids, names = {fault.id for fault in faults}, set(modules)
    return [e for e in equivalents if e.id not in ids and e.target.partition(":")[0] in names]


def _make_file_error(document: SafeYamlFile, message: str) -> YamlFileError:
    """Make an error of msgspec's message and the line of the fault."""
    problem, _, where = message.partition(" - at `$")
    place = ERROR_POSITION.search(where)
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
    return YamlFileError(document.path, document.find_line(*steps), problem)
