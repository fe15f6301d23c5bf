"""Reads variables and the bodies of kernels: statements with source lines.

Statements are read in order, with the registers and labels of inner scopes (inline assembly has
its own) renamed, so that a kernel has one name for one register. Example: the second `{ .reg .pred
p; ... }` of a kernel makes its register `p` to `p@2`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from harness.sanitizer.ir.graph import SourceLocation
from harness.sanitizer.ptx.statement_spans import split_operands

_TYPE_BITS = re.compile(r"^(?:pred|b|u|s|f|bf)(\d*)(x2)?$")


NUMBER_TYPES = frozenset(
    "pred b8 b16 b32 b64 u8 u16 u32 u64 s8 s16 s32 s64 f16 f32 f64 bf16 f16x2 bf16x2".split()
)


class PtxSyntaxError(Exception):
    """A text that this reader does not understand."""


def bits_of_type(name: str) -> int:
    """Return the number of bits of a PTX type: 1 for `pred`, 32 for `f16x2`."""
    if name == "pred":
        return 1
    match = _TYPE_BITS.match(name)
    if match is None or not match[1]:
        raise PtxSyntaxError(f"the type .{name}")
    return int(match[1]) * (2 if match[2] else 1)


@dataclass(frozen=True, slots=True)
class PtxVariable:
    """A variable in the global, constant, shared or local space."""

    name: str
    space: str
    alignment: int
    size: int  # bytes; 0 for dynamic shared memory
    contents: bytes = b""
    references: tuple[tuple[int, str], ...] = ()  # offsets that hold addresses of other variables


@dataclass(frozen=True, slots=True)
class PtxParameter:
    name: str
    offset: int
    size: int


class PtxName:
    """An instruction's name: `add.s32` is the opcode `add` and the modifier `s32`."""

    __slots__ = ()
    opcode: str
    modifiers: tuple[str, ...]

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

    def has(self, *modifiers: str) -> bool:
        return any(modifier in self.modifiers for modifier in modifiers)

    def find(self, *modifiers: str) -> str | None:
        return next((modifier for modifier in modifiers if modifier in self.modifiers), None)


@dataclass(frozen=True, slots=True)
class PtxStatement(PtxName):
    """One instruction: `@!%p1 add.s32 %r1, %r2, 3;`."""

    opcode: str  # "add"
    modifiers: tuple[str, ...]  # ("s32",)
    operands: tuple[str, ...]
    source: SourceLocation
    predicate: str = ""
    is_negated: bool = False


@dataclass(frozen=True, slots=True)
class PtxHead:
    """What stands in front of a kernel's body, and where the body is."""

    name: str
    parameters: tuple[PtxParameter, ...]
    directives: dict[str, tuple[int, ...]]  # maxntid, reqntid, ...
    # Of its head, its body and what follows, in the text without comments of the form /* */.
    positions: tuple[int, int, int]

    @property
    def most_threads(self) -> int | None:
        """The threads that a block may have; None if the kernel sets no limit itself."""
        limits = (self.directives.get(name) for name in ("maxntid", "reqntid"))
        return min((math.prod(sides) for sides in limits if sides), default=None)


@dataclass(slots=True)
class PtxKernel:
    head: PtxHead
    statements: list[PtxStatement] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)  # the statement that follows each
    branch_targets: dict[str, tuple[str, ...]] = field(default_factory=dict)
    register_types: dict[str, str] = field(default_factory=dict)
    variables: dict[str, PtxVariable] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.head.name

    @property
    def parameters(self) -> tuple[PtxParameter, ...]:
        return self.head.parameters


def remove_block_comments(text: str) -> str:
    return re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)


# Variables

_VARIABLE = re.compile(
    r"\.(global|const|shared|local)\s+(?:\.attribute\([^)]*\)\s*)?(?:\.align\s+(\d+)\s+)?"
    r"(?:\.v(\d)\s+)?\.(\w+)\s+([\w$%]+)((?:\[\d*\])*)\s*(?:=\s*(.*))?$",
    re.DOTALL,
)


def parse_variable(text: str) -> PtxVariable | None:
    match = _VARIABLE.match(text.strip())
    if match is None:
        return None
    space, alignment, vector, type_name, name, sides, value = match.groups()
    item = bits_of_type(type_name) // 8 * int(vector or 1)
    count = 1
    for side in re.findall(r"\[(\d*)\]", sides):
        count *= int(side or 0)
    contents, references = _parse_initializer(value or "", bits_of_type(type_name) // 8)
    return PtxVariable(name, space, int(alignment or item), count * item, contents, references)


def _parse_initializer(value: str, size: int) -> tuple[bytes, tuple[tuple[int, str], ...]]:
    contents, references = bytearray(), []
    for word in re.findall(r"generic\([^)]*\)|[^\s,{}]+", value):
        name = word.removeprefix("generic(").removesuffix(")")
        if re.match(r"^[A-Za-z_$%]", name):
            references.append((len(contents), name))
            number = 0
        else:
            number = parse_number(word)
        contents += (number & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    return bytes(contents), tuple(references)


def parse_number(word: str) -> int:
    """Return the bits of an immediate: an integer, a float such as `0f3F800000`, or `0.`.

    Inline assembly may write a float in decimals. Only zero has the same bits in every type.
    """
    if word[:2] in ("0f", "0F", "0d", "0D"):
        return int(word[2:], 16)
    if re.match(r"^-?\d*\.", word):
        if word.startswith("-") or float(word) != 0:
            raise PtxSyntaxError(f"the decimal number {word}, whose bits depend on its type")
        return 0
    text = word.rstrip("U")
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text)
    if re.match(r"^0[0-7]+$", digits):
        return sign * int(digits, 8)
    return sign * int(digits, 0)


def is_number(word: str) -> bool:
    return bool(re.match(r"^-?\d", word))


class BodyReader:
    """Reads a kernel's body, line by line because `.loc` ends with its line."""

    def __init__(self, kernel: PtxKernel, files: dict[int, str]) -> None:
        self._kernel, self._files = kernel, files
        self._scopes: list[dict[str, str]] = [{}]
        self._scope_numbers = [0]
        self._scope_count = 0
        self._call_sites: dict[tuple[int, ...], tuple[int, ...]] = {}  # file, line and column
        self._source = SourceLocation()

    def read(self, body: str) -> None:
        self._read_locations(body)
        pending = ""
        for raw_line in body.split("\n"):
            line = raw_line.partition("//")[0].strip()
            if not line:
                continue
            if re.match(r"\.loc\s", line) and not pending.strip():
                self._source = self._parse_location(line)
                continue
            pending = self._read_statements(f"{pending} {line}" if pending else line)
        if pending.strip():
            raise PtxSyntaxError(f"an unfinished statement: {pending.strip()[:60]}")

    def _read_statements(self, text: str) -> str:
        """Read the complete statements at the start of a text, and return the rest."""
        while True:
            text = text.lstrip()
            if not text:
                return ""
            if text[0] == "{":
                self._open_scope()
                text = text[1:]
                continue
            if text[0] == "}":
                self._scopes.pop()
                self._scope_numbers.pop()
                text = text[1:]
                continue
            label = re.match(r"([\w$%]+)\s*:(?!:)", text)
            if label is not None:
                name = self._rename_label(label[1])
                rest = text[label.end() :].lstrip()
                if rest.startswith(".branchtargets"):
                    if ";" not in rest:
                        return text
                    targets, text = rest.removeprefix(".branchtargets").split(";", 1)
                    self._kernel.branch_targets[name] = tuple(
                        self._rename_label(label.strip()) for label in targets.split(",")
                    )
                    continue
                self._kernel.labels[name] = len(self._kernel.statements)
                text = rest
                continue
            if ";" not in text:
                return text
            statement, text = text.split(";", 1)
            if statement.strip():
                self._read_statement(statement.strip())

    def _open_scope(self) -> None:
        self._scope_count += 1
        self._scope_numbers.append(self._scope_count)
        self._scopes.append({})

    def _rename_label(self, name: str) -> str:
        if len(self._scopes) == 1 or name.startswith("$L__"):
            return name
        return f"{name}@{self._scope_numbers[-1]}"

    def _read_statement(self, text: str) -> None:
        if text.startswith("."):
            self._read_directive(text)
            return
        predicate, negated = "", False
        match = re.match(r"@(!?)\s*([%\w$]+)\s+(.*)$", text, re.DOTALL)
        if match is not None:
            predicate, negated = self._rename(match[2]), bool(match[1])
            text = match[3]
        head = re.match(r"[\w.:]+", text)
        if head is None:
            raise PtxSyntaxError(f"the statement {text[:60]}")
        opcode, *modifiers = head[0].split(".")
        rest = text[head.end() :].strip()
        if opcode == "call":
            operands: tuple[str, ...] = (rest,)
        else:
            operands = tuple(self._rename_operand(operand) for operand in split_operands(rest))
        if opcode == "bra" or opcode == "brx":
            operands = (*operands[:-1], self._rename_label(split_operands(rest)[-1]))
        self._kernel.statements.append(
            PtxStatement(opcode, tuple(modifiers), operands, self._source, predicate, negated)
        )

    def _read_directive(self, text: str) -> None:
        match = re.match(r"\.reg\s+(?:\.v\d\s+)?\.(\w+)\s+(.*)$", text, re.DOTALL)
        if match is not None:
            for names in match[2].split(","):
                self._declare_registers(match[1], names.strip())
            return
        if text.startswith((".shared", ".local")):
            variable = parse_variable(text)
            if variable is None:
                raise PtxSyntaxError(f"the variable {text[:60]}")
            self._kernel.variables[variable.name] = variable
            return
        if text.startswith((".param", ".pragma", ".callprototype")):
            return
        raise PtxSyntaxError(f"the directive {text[:60]}")

    def _declare_registers(self, type_name: str, text: str) -> None:
        several = re.match(r"([%\w$]+)<(\d+)>$", text)
        names = (
            [f"{several[1]}{number}" for number in range(int(several[2]))] if several else [text]
        )
        for name in names:
            known = name
            if len(self._scopes) > 1:
                known = f"{name}@{self._scope_numbers[-1]}"
                self._scopes[-1][name] = known
            self._kernel.register_types[known] = type_name

    def _rename(self, name: str) -> str:
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        return name

    def _rename_operand(self, text: str) -> str:
        if len(self._scopes) == 1:
            return text
        return re.sub(r"[%$A-Za-z_][\w$%]*", lambda match: self._rename(match[0]), text)

    # Source lines

    _LOC = re.compile(
        r"\.loc\s+(\d+)\s+(\d+)\s+(\d+)(?:.*inlined_at\s+(\d+)\s+(\d+)\s+(\d+))?", re.DOTALL
    )

    def _read_locations(self, body: str) -> None:
        for line in body.split("\n"):
            self._parse_location(line.strip())

    def _parse_location(self, text: str) -> SourceLocation:
        match = self._LOC.match(text)
        if match is None:
            return self._source
        numbers = [int(number) for number in match.groups() if number is not None]
        file, line, column = numbers[:3]
        if numbers[3:]:  # the nearest line before an instruction names its callers
            self._call_sites[file, line, column] = tuple(numbers[3:])
        return self._make_location((file, line, column), bool(numbers[3:]), 0)

    def _make_location(
        self, place: tuple[int, ...], is_inlined: bool, depth: int
    ) -> SourceLocation:
        file, line, column = place
        call_site = self._call_sites.get(place) if is_inlined and depth < 32 else None
        caller = None if call_site is None else self._make_location(call_site, True, depth + 1)
        return SourceLocation(self._files.get(file, "?"), line, column, caller)
