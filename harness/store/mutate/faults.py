"""A fault as a value: one small change of one function or kernel, made by one operator."""

from __future__ import annotations

import hashlib

import msgspec


class MutationFault(msgspec.Struct, frozen=True):
    """`text[start:end]`, which is `before`, becomes `after`, in one module of one release."""

    id: str  # ten hexadecimal digits; the same in another release, wherever the code stands there
    operator: str
    module: str
    qualname: str  # the outermost function that holds it, with its classes: what is patched
    path: str  # of the module, as the release's sources give it
    kernel: bool  # inside a Triton kernel
    start: int  # characters of the module's text
    end: int
    line: int  # of `start`, from 1
    first: int  # the lines of the innermost statement that holds it, a compound one's header
    last: int
    before: str
    after: str
    words: str  # what the change means: "the factor self.topk is dropped"

    @property
    def target(self) -> str:
        return f"{self.module}:{self.qualname}"

    def apply_to(self, text: str) -> str:
        """The module's text with the fault in."""
        assert text[self.start : self.end] == self.before, "another text than it was made for"
        return text[: self.start] + self.after + text[self.end :]


class DroppedFault(msgspec.Struct, frozen=True):
    """A change that is no fault, and why: it does not compile, or it is the same code."""

    operator: str
    module: str
    qualname: str
    line: int
    before: str
    after: str
    why: str


class GeneratedFaults(msgspec.Struct, frozen=True):
    """All that the operators made of some targets, in the order of the source."""

    faults: tuple[MutationFault, ...]
    dropped: tuple[DroppedFault, ...]


def compute_fault_id(operator: str, module: str, qualname: str, statement: str, change: str) -> str:
    """An id that outlives moved lines and other white space.

    `statement` and `change` are said in normal form (`ast.unparse`); `change` carries which of
    several alike places in the statement it is, and which of several alike statements.
    """
    told = "\0".join((operator, module, qualname, statement, change))
    return hashlib.sha256(told.encode()).hexdigest()[:10]
