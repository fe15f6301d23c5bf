"""One instruction with its modifiers taken apart: what it computes with, and in which space."""

from __future__ import annotations

from harness.sanitizer.ir.graph import IROperation, IRValue

NUMBER_TYPES = frozenset(
    "pred b8 b16 b32 b64 u8 u16 u32 u64 s8 s16 s32 s64 f16 f32 f64 bf16 f16x2 bf16x2".split()
)
SPACES = ("global", "shared", "local", "param", "const")


class UnsupportedPtx(Exception):
    """An instruction that the executor does not know exactly."""


class Instruction:
    """An operation of the graph with its modifiers taken apart."""

    def __init__(self, operation: IROperation) -> None:
        self.operation = operation
        self.opcode = operation.name.removeprefix("ptx.")
        text = operation.attributes.get("modifiers", "")
        self.modifiers = tuple(text.split(".")) if text else ()
        groups = operation.attributes.get("groups", "")
        self.groups = [int(size) for size in groups.split(",")] if groups else []

    @property
    def name(self) -> str:
        return ".".join((self.opcode, *self.modifiers))

    @property
    def types(self) -> list[str]:
        return [modifier for modifier in self.modifiers if modifier in NUMBER_TYPES]

    @property
    def type(self) -> str:
        """The type that the instruction computes with: its last one."""
        return self.types[-1]

    @property
    def operands(self) -> tuple[IRValue, ...]:
        return self.operation.operands

    @property
    def results(self) -> tuple[IRValue, ...]:
        return self.operation.results

    def has(self, *modifiers: str) -> bool:
        return any(modifier in self.modifiers for modifier in modifiers)

    def find(self, *modifiers: str) -> str | None:
        return next((modifier for modifier in modifiers if modifier in self.modifiers), None)

    def refuse(self, why: str = "") -> UnsupportedPtx:
        return UnsupportedPtx(f"{self.name}{f' ({why})' if why else ''}")


def space_of(instruction: Instruction) -> str:
    """Return the space of an address; a cluster is one block here, so its shared memory is too."""
    for modifier in instruction.modifiers:
        name = modifier.partition("::")[0]
        if name in SPACES:
            return name
    return "generic"
