"""What a back end knows of one violation, in the form that `sentences` asks for.

A sentence names the facts that it needs, and no others are computed: a report of a race never asks
how far outside an address lies. So a back end has one class with a property for each fact, and no
code for single kinds. A line of a report whose fact a back end does not have is left out.
"""

from __future__ import annotations

import linecache
from abc import ABC, abstractmethod
from pathlib import Path

from harness.sanitizer.ir.graph import SourceLocation
from harness.sanitizer.violations.exceptions import KernelLocation
from harness.sanitizer.violations.kinds import ViolationKind
from harness.sanitizer.violations.named_memory import NamedMemory

_PAST_TENSE = {"read": "read", "write": "wrote", "update": "updated"}


class ViolationFacts(ABC):
    kind: ViolationKind
    verb: str  # "read", "write" or "update"; elsewhere what the operation is called
    address: int

    @property
    @abstractmethod
    def location(self) -> KernelLocation:
        """The access, or the operation that failed."""

    @property
    @abstractmethod
    def overflow_location(self) -> KernelLocation:
        """The operation that overflowed on its way into the address."""

    @property
    @abstractmethod
    def memory(self) -> NamedMemory | None:
        """The memory that the access was meant for."""

    @property
    def did(self) -> str:
        return _PAST_TENSE[self.verb]

    @property
    def element(self) -> str:
        memory = self.memory
        return memory.describe_element(self.address) if memory else f"address {self.address:#x}"

    @property
    def known_element(self) -> str:
        return self.element if self.memory is not None else ""

    @property
    def unit(self) -> str:
        return "program" if self.location.thread is None else "block"

    @property
    def runner(self) -> str:
        """The program or block."""
        return f"{self.unit} {self.location.program}"

    @property
    def actor(self) -> str:
        """What raced: the program, the block or one of its threads."""
        return self.runner

    @property
    def other(self) -> str:
        """What it raced with, or "another program" where its number is not known."""
        program = self.other_program
        return f"another {self.unit}" if program is None else f"{self.unit} {program}"

    @property
    def other_program(self) -> tuple[int, int, int] | None:
        return None

    @property
    def access_line(self) -> str:
        return f"{self.location.file}:{self.location.line}  {self.location.text}".rstrip()


def shorten_path(file: str) -> str:
    """Return a file's path below the working folder, or its last parts; so of a package."""
    path = Path(file)
    if "site-packages" not in path.parts and path.is_relative_to(Path.cwd()):
        return str(path.relative_to(Path.cwd()))
    return "/".join(path.parts[-3:]).replace("//", "/")


def read_line(source: SourceLocation) -> str:
    return linecache.getline(source.file, source.line).strip()


def describe_line(source: SourceLocation) -> str:
    return f"{shorten_path(source.file)}:{source.line}  {read_line(source)}".rstrip()
