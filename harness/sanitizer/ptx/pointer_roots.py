"""Which parameters a register's address may come from, by what is written to each register.

Invariant: a register that may hold a pointer from somewhere else says so (`elsewhere`), and its
accesses are left unchecked. An integer parameter that is added to a pointer counts as a root, too:
the launch knows which of the parameters are pointers. Example: of `ld.param.u64 %rd1, [p]; add.s64
%rd3, %rd1, %rd2;` the register `%rd3` has the root 0, the offset of `p`.
"""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from harness.sanitizer.ptx.basic_blocks import split_address, split_statement
from harness.sanitizer.ptx.module_text import PtxText
from harness.sanitizer.ptx.operations import find_operation
from harness.sanitizer.ptx.parser import PtxKernel, PtxStatement, is_number, parse_number

LOADED = "it was loaded from memory"
VARIABLE = "it is a variable of the module"
TABLE = "it is an entry of an array among the parameters"
ON_CHIP = "shared or local memory"
UNKNOWN = "nothing says which parameter its address comes from"


@dataclass(frozen=True, slots=True)
class PointerRoots:
    """The parameters by their byte offset, and where else a pointer may come from."""

    parameters: frozenset[int] = frozenset()
    elsewhere: frozenset[str] = frozenset()
    addresses: frozenset[int] = frozenset()  # it points at the parameter of this offset itself

    def __or__(self, other: PointerRoots) -> PointerRoots:
        return PointerRoots(
            self.parameters | other.parameters,
            self.elsewhere | other.elsewhere,
            self.addresses | other.addresses,
        )

    def is_index(self, sources: set[str]) -> bool:
        """Tell whether it comes from these sources alone, so that in a sum it is no pointer."""
        return bool(self.elsewhere) and self.elsewhere <= sources and not self.parameters


_NONE = PointerRoots()


class PointerRootTable:
    """The roots of each register of a kernel."""

    def __init__(self, module: PtxText, kernel: PtxKernel) -> None:
        self._module, self._kernel = module, kernel
        self._offsets = {parameter.name: parameter.offset for parameter in kernel.parameters}
        self._roots: dict[str, PointerRoots] = {}
        self._parameter_addresses = self._find_parameter_addresses()
        changed = True
        while changed:
            changed = False
            for statement in kernel.statements:
                for register, roots in self._read(statement):
                    before = self._roots.get(register, _NONE)
                    if before | roots != before:
                        self._roots[register] = before | roots
                        changed = True

    def find(self, text: str) -> PointerRoots:
        """Return the roots of an operand."""
        if text in self._kernel.register_types:
            return self._roots.get(text, _NONE)
        if text in self._offsets:
            return PointerRoots(addresses=frozenset([self._offsets[text]]))
        name = text.partition("+")[0]
        variable = self._kernel.variables.get(name) or self._module.variables.get(name)
        if variable is None:
            return _NONE
        where = ON_CHIP if variable.space in ("shared", "local") else VARIABLE
        return PointerRoots(elsewhere=frozenset([where]))

    def _find_parameter_addresses(self) -> dict[str, int]:
        """Find the registers that hold the address of a parameter or of a byte in it."""
        count = Counter(
            name for statement in self._kernel.statements for name in split_statement(statement)[0]
        )
        found: dict[str, int] = {}
        for statement in self._kernel.statements:
            results, operands = split_statement(statement)
            is_sum = statement.opcode == "add"
            if not (is_sum or find_operation(statement.opcode).copies) or count[results[0]] > 1:
                continue
            base = operands[0]
            offset = self._offsets.get(base, found.get(base))
            if is_sum:
                if not is_number(operands[1]):
                    continue
                offset = None if offset is None else offset + parse_number(operands[1])
            if offset is not None:
                found[results[0]] = offset
        return found

    def _read(self, statement: PtxStatement) -> Iterable[tuple[str, PointerRoots]]:
        results, operands = split_statement(statement)
        row = find_operation(statement.opcode)
        if row.access == "read":
            return self._read_load(statement, results, operands[0])
        places = row.pointers
        if not places or len(results) != 1 or operands[0].startswith("{"):
            return self._leave_unknown(results)
        found = [self.find(operands[place]) for place in places if place < len(operands)]
        if statement.opcode == "mad" and "wide" not in statement.modifiers:
            found = found if statement.modifiers[-1].endswith("64") else []
        if row.adds_index:
            # A loaded number that is added to a parameter's pointer is an index in bytes.
            from_parameters = [roots for roots in found if roots.parameters]
            if from_parameters:
                found = [roots for roots in found if not roots.is_index({LOADED, UNKNOWN})]
            elif any(roots != _NONE and not roots.is_index({UNKNOWN}) for roots in found):
                found = [roots for roots in found if not roots.is_index({UNKNOWN})]
        return ((results[0], functools.reduce(operator.or_, found, _NONE)),)

    def _read_load(
        self, statement: PtxStatement, results: list[str], address: str
    ) -> Iterable[tuple[str, PointerRoots]]:
        kind = statement.modifiers[-1]
        if not kind.endswith("64") or kind.startswith("f"):
            return ()
        base, offset = split_address(address) or ("", 0)
        roots = self.find(base)
        if "param" not in {modifier.partition("::")[0] for modifier in statement.modifiers}:
            loaded = PointerRoots(elsewhere=frozenset([LOADED]))
            return ((result, loaded) for result in results)
        known = self._offsets.get(base, self._parameter_addresses.get(base))
        if known is not None:
            first = known + offset
            return (
                (result, PointerRoots(frozenset([first + 8 * place])))
                for place, result in enumerate(results)
            )
        if roots.addresses:
            table = PointerRoots(elsewhere=frozenset([TABLE]))
            return ((result, table) for result in results)
        return self._leave_unknown(results)  # of a function that the kernel called

    def _leave_unknown(self, results: list[str]) -> Iterable[tuple[str, PointerRoots]]:
        """Give each result that can hold a pointer an unknown root."""
        kinds = self._kernel.register_types
        wide = [result for result in results if kinds.get(result) in ("b64", "u64", "s64")]
        return ((result, PointerRoots(elsewhere=frozenset([UNKNOWN]))) for result in wide)
