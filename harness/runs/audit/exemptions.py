"""Exemptions: accepted findings from a YAML file, each with a reason.

An exemption names a kernel and the text of a line. It expires when the line changes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from harness.core import paths
from harness.core.located_yaml import SafeYamlFile, YamlFileError
from harness.fixes.registry.schema import Text
from harness.runs.audit.findings import FindingKey, FindingKind


class FindingExemption(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kernel: Text
    line: Text  # the line of code, as written
    because: Annotated[str, Meta(pattern=r"\S+\s+\S+\s+\S+")]  # three words at least
    kind: FindingKind = FindingKind.OVERFLOWS
    unless: Literal["confirmed"] | None = None

    @property
    def key(self) -> FindingKey:
        return self.kind, self.kernel, " ".join(self.line.split())


def find_default_path() -> Path:
    return paths.project_folder() / "suites" / "audit_exceptions.yaml"


def read_exemptions(path: Path) -> list[FindingExemption]:
    """Read the exemptions of a file; without the file there are none."""
    if not path.exists():
        return []
    document = SafeYamlFile(path)
    try:
        return msgspec.convert(document.values or [], list[FindingExemption], strict=True)
    except msgspec.ValidationError as error:
        raise YamlFileError(document.path, 1, str(error)) from error
