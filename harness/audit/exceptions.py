"""Findings that somebody has looked at and lives with: data, with a reason each.

An exception is of a kernel's line by its text. When the line changes, the exception has expired.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from harness import paths
from harness.audit.findings import Key, Kind
from harness.errors import ToggleFileError
from harness.registry.files import LinedDocument
from harness.registry.schema import Text


class Exempt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kernel: Text
    line: Text  # of code, as it stands
    because: Annotated[str, Meta(pattern=r"\S+\s+\S+\s+\S+")]  # a reason, not a word
    kind: Kind = Kind.WRAPS
    unless: Literal["confirmed"] | None = None  # what it is no exception for

    @property
    def key(self) -> Key:
        return self.kind, self.kernel, " ".join(self.line.split())


def default() -> Path:
    return paths.project() / "suites" / "audit_exceptions.yaml"


def read(path: Path) -> list[Exempt]:
    """The exceptions of a file; one that is not there has none."""
    if not path.exists():
        return []
    document = LinedDocument(path)
    try:
        return msgspec.convert(document.values or [], list[Exempt], strict=True)
    except msgspec.ValidationError as error:
        raise ToggleFileError(document.path, 1, str(error)) from error
