"""A fault as a value: one small change of one function or kernel, made by one operator."""

from __future__ import annotations

import hashlib

import msgspec


class MutationFault(msgspec.Struct, frozen=True):
    """A change of `text[start:end]` from `before` to `after`, in one module of one release."""

    id: str  # ten hexadecimal digits; the same in every release with this code
    operator: str
    module: str
    qualname: str  # the patched function, the outermost around the fault
    path: str  # the module's path in the release's sources
    kernel: bool  # inside a Triton kernel
    start: int  # an offset in the module's text, in characters
    end: int
    line: int  # of `start`, from 1
    first: int  # first line of the innermost statement, or of its header
    last: int
    before: str
    after: str
    words: str  # a description: "the factor self.topk is dropped"

    @property
    def target(self) -> str:
        return f"{self.module}:{self.qualname}"

    def apply_to(self, text: str) -> str:
        """Apply the fault to the text of its module."""
        assert text[self.start : self.end] == self.before, (
            "the text differs from the one that the fault was made for"
        )
        return text[: self.start] + self.after + text[self.end :]


class DroppedFault(msgspec.Struct, frozen=True):
    """A change that is no fault, as it does not compile, or compiles to the same code."""

    operator: str
    module: str
    qualname: str
    line: int
    before: str
    after: str
    why: str


class GeneratedFaults(msgspec.Struct, frozen=True):
    """The faults of some targets, in the order of the source."""

    faults: tuple[MutationFault, ...]
    dropped: tuple[DroppedFault, ...]


def compute_fault_id(operator: str, module: str, qualname: str, statement: str, change: str) -> str:
    """Return an id that does not depend on line numbers and white space.

    `statement` and `change` are in normal form (`ast.unparse`); `change` includes the position
    among equal changes of the statement, and among equal statements.
    """
    text = "\0".join((operator, module, qualname, statement, change))
    return hashlib.sha256(text.encode()).hexdigest()[:10]
