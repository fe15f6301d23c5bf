"""The accesses of global memory in a kernel that a GPU's checks are written in front of.

Invariant: an access that is not checked counts under its reason. Example: `ld.global.v4.b32
{…}, [%rd4+16]` is a read of 16 bytes in parts of 4 at `%rd4`; one through a pointer that the kernel
loaded counts as "it was loaded from memory".
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from harness.sanitizer.ptx.basic_blocks import split_address, split_group, split_statement
from harness.sanitizer.ptx.instructions import space_of
from harness.sanitizer.ptx.operations import find_operation
from harness.sanitizer.ptx.parser import (
    PtxKernel,
    PtxStatement,
    PtxSyntaxError,
    bits_of_type,
    is_number,
    parse_number,
)
from harness.sanitizer.ptx.pointer_roots import (
    LOADED,
    ON_CHIP,
    TABLE,
    UNKNOWN,
    VARIABLE,
    PointerRootTable,
)


@dataclass(frozen=True, slots=True)
class GlobalAccess:
    statement: PtxStatement
    verb: str
    base: str  # the register of its address
    offset: int
    size: int  # bytes
    part_size: int  # bytes of one of its registers
    dynamic_size: str = ""  # the register with its bytes, of a copy that may be shorter
    values: tuple[str, ...] = ()  # that it writes
    roots: tuple[int, ...] = ()  # the parameters that its address may come from


class GlobalAccesses:
    """The accesses that are checked, by the place of their statement; the others are counted."""

    def __init__(self, kernel: PtxKernel, roots: PointerRootTable) -> None:
        self._kernel, self._roots = kernel, roots
        self.unchecked: Counter[str] = Counter()
        self.by_place: dict[int, GlobalAccess] = {}
        for place, statement in enumerate(kernel.statements):
            access = self._read_statement(statement)
            reason = None if access is None else self._find_reason(access)
            if reason:
                self.unchecked[reason] += 1
            elif access is not None and reason is not None:
                self.by_place[place] = access

    def _read_statement(self, statement: PtxStatement) -> GlobalAccess | None:
        opcode, modifiers = statement.opcode, statement.modifiers
        verb = find_operation(opcode).access
        if verb:
            if space_of(statement) not in ("global", "generic"):
                return None
            operands = split_statement(statement)[1]
            kind = next(
                modifier
                for modifier in reversed(modifiers)
                if re.fullmatch(r"(b|u|s|f|bf)\d+(x2)?", modifier)
            )
            count = next(
                (int(modifier[1:]) for modifier in modifiers if re.fullmatch(r"v\d", modifier)), 1
            )
            part = bits_of_type(kind) // 8
            values = tuple(split_group(operands[1])) if verb == "write" else ()
            return self._make_access(
                statement, verb, operands[0], part * count, part, values=values
            )
        if opcode == "cp" and modifiers[:1] == ("async",) and "bulk" not in modifiers:
            if "global" not in modifiers:
                return None  # of a group
            size = parse_number(statement.operands[2])
            dynamic_size = statement.operands[3] if len(statement.operands) > 3 else ""
            if is_number(dynamic_size):
                size, dynamic_size = parse_number(dynamic_size), ""
            if self._kernel.register_types.get(dynamic_size) in (None, "b64", "pred"):
                dynamic_size = ""  # a cache policy, or a mask that ignores the source
            return self._make_access(
                statement, "read", statement.operands[1], size, size, dynamic_size=dynamic_size
            )
        if opcode == "multimem":
            self.unchecked["it is multimem"] += 1
        if opcode == "cp" and "global" in modifiers:
            self.unchecked["it is a bulk copy"] += 1
        return None

    def _make_access(
        self,
        statement: PtxStatement,
        verb: str,
        address: str,
        size: int,
        part_size: int,
        *,
        dynamic_size: str = "",
        values: tuple[str, ...] = (),
    ) -> GlobalAccess:
        place = split_address(address)
        if place is None:
            raise PtxSyntaxError(f"the address {address}")
        base, offset = place
        roots = tuple(sorted(self._roots.find(base).parameters))
        return GlobalAccess(
            statement, verb, base, offset, size, part_size, dynamic_size, values, roots
        )

    def _find_reason(self, access: GlobalAccess) -> str | None:
        """Return why an access is not checked, "" if it is; None if it is none of global memory."""
        roots = self._roots.find(access.base)
        is_generic = space_of(access.statement) == "generic"
        if is_generic and roots.elsewhere == {ON_CHIP} and not roots.parameters:
            return None
        if is_generic and roots.addresses and not roots.parameters:
            return None  # of the parameters themselves
        for reason in (LOADED, VARIABLE, TABLE, ON_CHIP, UNKNOWN):
            if reason in roots.elsewhere:
                return reason
        return "" if roots.parameters else UNKNOWN
