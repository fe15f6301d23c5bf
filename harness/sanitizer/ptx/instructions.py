"""One instruction with its modifiers taken apart: what it computes with, and in which space."""

from __future__ import annotations

from harness.sanitizer.ir.graph import IROperation, IRValue
from harness.sanitizer.ptx.parser import PtxName

SPACES = ("global", "shared", "local", "param", "const")


def is_float_type(name: str) -> bool:
    return name[0] == "f" or name.startswith("bf")


class UnsupportedPtx(Exception):
    """An instruction that the executor does not know exactly."""


class Instruction(PtxName):
    """An operation of the graph with its modifiers taken apart."""

    def __init__(self, operation: IROperation) -> None:
        self.operation = operation
        self.opcode = operation.name.removeprefix("ptx.")
        text = operation.attributes.get("modifiers", "")
        self.modifiers = tuple(text.split(".")) if text else ()
        groups = operation.attributes.get("groups", "")
        self.groups = [int(size) for size in groups.split(",")] if groups else []

    @property
    def operands(self) -> tuple[IRValue, ...]:
        return self.operation.operands

    @property
    def results(self) -> tuple[IRValue, ...]:
        return self.operation.results

    def refuse(self, why: str = "") -> UnsupportedPtx:
        return UnsupportedPtx(f"{self.name}{f' ({why})' if why else ''}")


def space_of(instruction: PtxName) -> str:
    """Return the space of an address; a cluster is one block here, so its shared memory is too."""
    for modifier in instruction.modifiers:
        name = modifier.partition("::")[0]
        if name in SPACES:
            return name
    return "generic"
