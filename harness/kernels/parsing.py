"""MLIR's generic form, read into a graph.

In that form every operation is written alike: results, a quoted name, operands, successors,
properties, regions, attributes, types, a location. So one short grammar reads them all, whatever
dialects a later Triton adds.
"""

from __future__ import annotations

import functools
import re

from harness.kernels.graph import Block, Graph, Kind, Operation, Region, Source, Value

_SPACE = re.compile(r"(?:\s+|//[^\n]*)*")
_NAME = re.compile(r"%[\w$.\-]+(?:#\d+)?")
_TYPE = re.compile(r"!?[\w.]+")
_RESULT = re.compile(r"%([\w$.\-]+)(?::(\d+))?")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_LABEL = re.compile(r"\^[\w$.\-]+")
_KEY = re.compile(r'[\w$.\-]+|"[^"]*"')
_LOCATION = re.compile(r"^(#loc\d*) = loc\((.*)\)$", re.MULTILINE)
_PLACE = re.compile(r'^"((?:[^"\\]|\\.)*)":(\d+):(\d+)')
_TENSOR = re.compile(r"tensor<((?:\d+x)*)(.*)>$", re.DOTALL)
_OPEN, _CLOSE = frozenset("<({["), frozenset(">)}]")


class Unreadable(Exception):
    """Text that is not MLIR's generic form as this grammar knows it."""


def parsed(text: str) -> Graph:
    """The graph of a module with one public kernel."""
    return _Parser(text).module()


def kind_of(text: str) -> Kind:
    text = text.strip()
    shape: tuple[int, ...] = ()
    tensor = _TENSOR.match(text)
    if tensor:
        shape = tuple(int(side) for side in tensor[1].split("x") if side)
        text = tensor[2]
    return Kind(text.removeprefix("!tt."), shape)


class _Locations:
    """`loc(...)` as source places; a name around a place is a variable's."""

    def __init__(self, text: str) -> None:
        self._texts = dict(_LOCATION.findall(text))
        self._known: dict[str, tuple[Source, str]] = {}

    def of(self, text: str) -> tuple[Source, str]:
        if text not in self._known:
            self._known[text] = self._read(text.strip())
        return self._known[text]

    def _read(self, text: str) -> tuple[Source, str]:
        if text.startswith("#"):
            return self.of(self._texts.get(text, "unknown"))
        place = _PLACE.match(text)
        if place:
            return Source(place[1], int(place[2]), int(place[3])), ""
        if text.startswith("callsite("):
            callee, caller = _split(text[len("callsite(") : -1], " at ")
            inner, name = self.of(callee)
            return _called(inner, self.of(caller)[0]), name
        if text.startswith("fused"):
            return self.of(_split(text[text.index("[") + 1 : -1], ",")[0])
        named = _STRING.match(text)
        if named and text[named.end() :].startswith("("):
            return self.of(text[named.end() + 1 : -1])[0], named[1]
        return Source(), ""


def _called(inner: Source, caller: Source) -> Source:
    outer = caller if inner.caller is None else _called(inner.caller, caller)
    return Source(inner.file, inner.line, inner.column, outer)


def _split(text: str, separator: str) -> list[str]:
    """At separators that are inside of no brackets and no string."""
    parts, depth, start = [], 0, 0
    for found in _marks(separator).finditer(text):
        mark = found[0]
        if mark in _OPEN:
            depth += 1
        elif mark in _CLOSE:
            depth -= 1
        elif mark == separator and not depth:
            parts.append(text[start : found.start()])
            start = found.end()
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


@functools.cache
def _marks(separator: str = "") -> re.Pattern[str]:
    """A bracket or a separator; strings and arrows are passed over whole."""
    other = f"|{re.escape(separator)}" if separator else ""
    return re.compile(r'"(?:[^"\\]|\\.)*"|->|[<({\[>)}\]]' + other)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._locations = _Locations(text)
        self._values: dict[str, Value] = {}
        self._made = 0

    def module(self) -> Graph:
        self._at = self._text.index('"builtin.module"')
        module = self._operation([])
        functions = {
            operation.attributes["sym_name"].strip('"'): operation
            for operation in module.regions[0].block.operations
            if operation.name == "tt.func"
        }
        public = [
            name
            for name, operation in functions.items()
            if operation.attributes.get("sym_visibility", '"public"') == '"public"'
        ]
        if len(public) != 1:
            raise Unreadable(f"one public function was looked for, found {public}")
        bodies = {name: operation.regions[0] for name, operation in functions.items()}
        [kernel] = public
        return Graph(kernel, bodies.pop(kernel), bodies, functions[kernel].attributes)

    # The text

    def _skip(self) -> None:
        self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]

    def _peek(self, text: str) -> bool:
        self._skip()
        return self._text.startswith(text, self._at)

    def _accept(self, text: str) -> bool:
        if self._peek(text):
            self._at += len(text)
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            near = self._text[self._at : self._at + 80].split("\n")[0]
            raise Unreadable(f"{text!r} was looked for before {near!r}")

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        self._skip()
        found = pattern.match(self._text, self._at)
        if found is None:
            near = self._text[self._at : self._at + 80].split("\n")[0]
            raise Unreadable(f"{pattern.pattern} was looked for before {near!r}")
        self._at = found.end()
        return found

    def _balanced(self) -> str:
        """The text between the bracket here and the one that closes it."""
        self._skip()
        start, depth = self._at, 0
        for found in _marks().finditer(self._text, start):
            mark = found[0]
            depth += (mark in _OPEN) - (mark in _CLOSE)
            if not depth:
                self._at = found.end()
                return self._text[start + 1 : self._at - 1]
        raise Unreadable(f"no end of {self._text[start : start + 60]!r}")

    # The grammar

    def _region(self) -> Region:
        self._expect("{")
        blocks: list[Block] = []
        while not self._accept("}"):
            label = "bb0"
            arguments: tuple[Value, ...] = ()
            if self._peek("^"):
                label = self._match(_LABEL)[0][1:]
                arguments = self._arguments() if self._peek("(") else ()
                self._expect(":")
            operations = []
            while not self._peek("}") and not self._peek("^"):
                operations.append(self._statement())
            blocks.append(Block(label, arguments, tuple(operations)))
        return Region(tuple(blocks))

    def _arguments(self) -> tuple[Value, ...]:
        made = []
        for part in _split(self._balanced(), ","):
            name, _, rest = part.partition(":")
            kind, _, location = rest.partition(" loc(")
            made.append(self._value(name.strip(), kind, self._locations.of(location[:-1])[1]))
        return tuple(made)

    def _value(self, name: str, kind: str, variable: str) -> Value:
        """The one of this name; where it was used before its block, that very one."""
        known = self._values.get(name)
        if known is not None and known.kind.element == "?":
            object.__setattr__(known, "kind", kind_of(kind))
            object.__setattr__(known, "name", variable)
            return known
        self._made += 1
        self._values[name] = Value(self._made - 1, kind_of(kind), variable)
        return self._values[name]

    def _used(self, name: str) -> Value:
        if name not in self._values:  # a block that comes later in the text
            self._values[name] = Value(self._made, Kind("?"))
            self._made += 1
        return self._values[name]

    def _statement(self) -> Operation:
        names: list[str] = []
        while self._peek("%"):
            found = self._match(_RESULT)
            if found[2]:
                names += [f"%{found[1]}#{index}" for index in range(int(found[2]))]
            else:
                names.append(f"%{found[1]}")
            if not self._accept(","):
                self._expect("=")
        return self._operation(names)

    def _operation(self, names: list[str]) -> Operation:
        name = self._match(_STRING)[1]
        operands = [self._used(used) for used in _NAME.findall(self._balanced())]
        successors: list[str] = []
        if self._accept("["):
            while not self._accept("]"):
                successors.append(self._match(_LABEL)[0][1:])
                self._accept(",")
        attributes: dict[str, str] = {}
        if self._peek("<{"):
            attributes |= self._attributes(self._balanced().strip()[1:-1])
        regions = []
        if self._peek("({"):
            self._expect("(")
            regions.append(self._region())
            while self._accept(","):
                regions.append(self._region())
            self._expect(")")
        if self._peek("{"):
            attributes |= self._attributes(self._balanced())
        self._expect(":")
        self._balanced()
        self._expect("->")
        kinds = self._result_kinds()
        source, variable = Source(), ""
        if self._accept("loc"):
            source, variable = self._locations.of(self._balanced())
        results = tuple(
            self._value(result, kind, variable) for result, kind in zip(names, kinds, strict=True)
        )
        return Operation(
            name, tuple(operands), results, attributes, source, tuple(regions), tuple(successors)
        )

    def _result_kinds(self) -> list[str]:
        if self._peek("("):
            return _split(self._balanced(), ",")
        start = self._at
        found = self._match(_TYPE)
        if self._text.startswith("<", self._at):
            self._balanced()
            return [self._text[start : self._at]]
        return [found[0]]

    @staticmethod
    def _attributes(text: str) -> dict[str, str]:
        read = {}
        for part in _split(text, ","):
            name = _KEY.match(part)
            if name is None:
                raise Unreadable(f"an attribute without a name: {part}")
            value = part[name.end() :].strip()
            read[name[0].strip('"')] = value[1:].strip() if value.startswith("=") else "unit"
        return read
