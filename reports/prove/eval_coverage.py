"""The evaluation matrices that plant a toggle which no guard reaches."""

from __future__ import annotations

import functools

import msgspec

from harness.core import paths
from harness.core.yaml_document import YamlDocument
from harness.fixes.registry import toggle_catalogue
from harness.fixes.registry.schema import DeviceKind
from harness.guards import proof_exceptions
from harness.matrices.reader import MATRICES_FOLDER


class _PlantedFault(msgspec.Struct):
    revert: str = ""
    enable: str = ""


class _FaultList(msgspec.Struct):
    faults: list[_PlantedFault] = []


@functools.cache
def load_eval_coverage() -> dict[str, tuple[str, ...]]:
    """Return the matrices by toggle, for toggles that the list of exceptions has everywhere."""
    planted: dict[str, list[str]] = {}
    for file in sorted((paths.project_folder() / MATRICES_FOLDER).glob("*.yaml")):
        for fault in msgspec.convert(YamlDocument(file).values, _FaultList).faults:
            planted.setdefault(fault.revert or fault.enable, []).append(file.stem)
    exceptions = proof_exceptions.load_project_exceptions(toggle_catalogue.load_catalogue())
    everywhere = {kind.value for kind in DeviceKind}
    without_guard = [
        exception.toggle
        for exception in exceptions
        if exception.guard is None
        and not str(exception.releases)
        and exception.devices == everywhere
    ]
    return {name: tuple(planted[name]) for name in without_guard if name in planted}
