"""The schema of a finding's file, as frozen values."""

from __future__ import annotations

import datetime
import re
from enum import Enum
from functools import cached_property
from typing import Annotated

import msgspec
from msgspec import Meta
from packaging.specifiers import SpecifierSet

from harness.fixes.registry.schema import PullRequest, Slug, Text

_OPTIONS = ("default", "opt-in")
Texts = Annotated[tuple[Text, ...], Meta(min_length=1)]


class Severity(Enum):
    """How bad a finding is, worst first."""

    WRONG_ANSWERS = "wrong answers"
    CRASH = "crash"
    LEAK = "leak"
    SLOW = "slow"
    THEORETICAL = "theoretical"

    @property
    def needs_reproduction(self) -> bool:
        return self in (Severity.WRONG_ANSWERS, Severity.CRASH)


class UpstreamThread(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    number: PullRequest
    says: Text


class UpstreamSearch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The search of SGLang's threads for a finding."""

    searched: datetime.date
    words: Text
    threads: tuple[UpstreamThread, ...]


class ProposedFix(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A proposed toggle, or the reason why there is none."""

    why: Text
    toggle: Slug = ""
    none: str = ""
    cost: str = ""  # in time and memory, where the fix changes a kernel


class RecordedEvidence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    record: Text


class FindingTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The findings of one kind that are joined: one row each."""

    columns: Texts
    rows: Annotated[tuple[Texts, ...], Meta(min_length=1)]


class Finding(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """A bug in SGLang's releases, with everything that its pull request needs."""

    title: Text
    severity: Severity
    file: Text | Texts
    function: Text | Texts
    releases: Text
    ran: tuple[Text, ...]
    first: Text
    reach: Text
    what: Text
    upstream: UpstreamSearch
    fix: ProposedFix
    evidence: Annotated[tuple[Text | RecordedEvidence, ...], Meta(min_length=1)]
    server: str = ""
    unfix: tuple[Text, ...] = ()
    table: FindingTable | None = None
    name: str = ""  # that of its file

    @property
    def page(self) -> str:
        """Return the path of its page, which rows of the zoo name as the reason of a failure."""
        return f"docs/findings/{self.name}.md"

    @property
    def has_server(self) -> bool:
        """Return whether the server command names a published model."""
        return bool(self.server) and "YOUR_" not in self.server

    @property
    def files(self) -> tuple[str, ...]:
        return (self.file,) if isinstance(self.file, str) else self.file

    @property
    def functions(self) -> tuple[str, ...]:
        return (self.function,) if isinstance(self.function, str) else self.function

    @cached_property
    def specifier(self) -> SpecifierSet:
        return SpecifierSet(self.releases, prereleases=True)

    def names_error(self, error_class: str) -> bool:
        """Return whether the finding says that an error of this class is raised."""
        words = f"{self.title} {self.what} {self.evidence}"
        return re.search(rf"\b{error_class}\b", words) is not None

    @property
    def option(self) -> str:
        """Return 'default' or 'opt-in', as its reach says of options, or ''."""
        words = self.reach.lower()
        return next((word for word in _OPTIONS if word in words), "")

    @property
    def sort_key(self) -> tuple[int, int, str]:
        """The worst first; of one severity those with default options, then opt-in ones."""
        severity = list(Severity).index(self.severity)
        return severity, [*_OPTIONS, ""].index(self.option), self.title.lower()
