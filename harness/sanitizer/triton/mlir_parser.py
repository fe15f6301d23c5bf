"""MLIR's generic form as a graph.

In that form every operation has one syntax: results, a quoted name, operands, successors,
properties, regions, attributes, types, a location. So one short grammar reads any dialect. Example:

%5 = "tt.addptr"(%3, %4) : (!tt.ptr<i32>, i32) -> !tt.ptr<i32> loc(#loc7)
"""

from __future__ import annotations

import functools
import re

from harness.sanitizer.ir.graph import (
    IRBlock,
    IROperation,
    IRRegion,
    IRValue,
    KernelGraph,
    SourceLocation,
    ValueType,
)

_SPACE = re.compile(r"(?:\s+|//[^\n]*)*")
_VALUE_NAME = re.compile(r"%[\w$.\-]+(?:#\d+)?")
_TYPE = re.compile(r"!?[\w.]+")
_RESULT = re.compile(r"%([\w$.\-]+)(?::(\d+))?")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_LABEL = re.compile(r"\^[\w$.\-]+")
_ATTRIBUTE_NAME = re.compile(r'[\w$.\-]+|"[^"]*"')
_LOCATION = re.compile(r"^(#loc\d*) = loc\((.*)\)$", re.MULTILINE)
_FILE_LOCATION = re.compile(r'^"((?:[^"\\]|\\.)*)":(\d+):(\d+)')
_TENSOR = re.compile(r"tensor<((?:\d+x)*)(.*)>$", re.DOTALL)
_OPENING_BRACKETS, _CLOSING_BRACKETS = frozenset("<({["), frozenset(">)}]")


class MlirSyntaxError(Exception):
    """Text that is not MLIR's generic form as this grammar knows it."""


def parse_mlir(text: str) -> KernelGraph:
    """Parse a module with one public kernel."""
    return _MlirParser(text).parse_module()


def parse_type(text: str) -> ValueType:
    text = text.strip()
    shape: tuple[int, ...] = ()
    tensor = _TENSOR.match(text)
    if tensor:
        shape = tuple(int(side) for side in tensor[1].split("x") if side)
        text = tensor[2]
    return ValueType(text.removeprefix("!tt."), shape)


class _LocationTable:
    """`loc(...)` as source lines; a name around one is the name of a variable."""

    def __init__(self, text: str) -> None:
        self._definitions = dict(_LOCATION.findall(text))
        self._resolved: dict[str, tuple[SourceLocation, str]] = {}

    def resolve(self, text: str) -> tuple[SourceLocation, str]:
        if text not in self._resolved:
            self._resolved[text] = self._parse_location(text.strip())
        return self._resolved[text]

    def _parse_location(self, text: str) -> tuple[SourceLocation, str]:
        if text.startswith("#"):
            return self.resolve(self._definitions.get(text, "unknown"))
        place = _FILE_LOCATION.match(text)
        if place:
            return SourceLocation(place[1], int(place[2]), int(place[3])), ""
        if text.startswith("callsite("):
            callee, caller = _split_outside_brackets(text[len("callsite(") : -1], " at ")
            inner, name = self.resolve(callee)
            return _with_caller(inner, self.resolve(caller)[0]), name
        if text.startswith("fused"):
            return self.resolve(_split_outside_brackets(text[text.index("[") + 1 : -1], ",")[0])
        named = _STRING.match(text)
        if named and text[named.end() :].startswith("("):
            return self.resolve(text[named.end() + 1 : -1])[0], named[1]
        return SourceLocation(), ""


def _with_caller(callee: SourceLocation, caller: SourceLocation) -> SourceLocation:
    outer = caller if callee.caller is None else _with_caller(callee.caller, caller)
    return SourceLocation(callee.file, callee.line, callee.column, outer)


def _split_outside_brackets(text: str, separator: str) -> list[str]:
    """Split at separators outside of brackets and strings."""
    parts, depth, start = [], 0, 0
    for match in _make_bracket_pattern(separator).finditer(text):
        mark = match[0]
        if mark in _OPENING_BRACKETS:
            depth += 1
        elif mark in _CLOSING_BRACKETS:
            depth -= 1
        elif mark == separator and not depth:
            parts.append(text[start : match.start()])
            start = match.end()
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


@functools.cache
def _make_bracket_pattern(separator: str = "") -> re.Pattern[str]:
    """Make a pattern that matches a bracket or separator; strings and arrows match as a whole."""
    other = f"|{re.escape(separator)}" if separator else ""
    return re.compile(r'"(?:[^"\\]|\\.)*"|->|[<({\[>)}\]]' + other)


class _MlirParser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._locations = _LocationTable(text)
        self._values: dict[str, IRValue] = {}
        self._value_count = 0

    def parse_module(self) -> KernelGraph:
        self._position = self._text.index('"builtin.module"')
        module = self._parse_operation([])
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
            raise MlirSyntaxError(f"expected one public function, found {public}")
        bodies = {name: operation.regions[0] for name, operation in functions.items()}
        [kernel] = public
        return KernelGraph(kernel, bodies.pop(kernel), bodies, functions[kernel].attributes)

    # The text

    def _skip_space(self) -> None:
        self._position = _SPACE.match(self._text, self._position).end()  # type: ignore[union-attr]

    def _peek(self, text: str) -> bool:
        self._skip_space()
        return self._text.startswith(text, self._position)

    def _accept(self, text: str) -> bool:
        if self._peek(text):
            self._position += len(text)
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            near = self._text[self._position : self._position + 80].split("\n")[0]
            raise MlirSyntaxError(f"expected {text!r} before {near!r}")

    def _take_match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        self._skip_space()
        match = pattern.match(self._text, self._position)
        if match is None:
            near = self._text[self._position : self._position + 80].split("\n")[0]
            raise MlirSyntaxError(f"expected {pattern.pattern} before {near!r}")
        self._position = match.end()
        return match

    def _take_bracketed(self) -> str:
        """Take the text between the bracket here and the one that closes it."""
        self._skip_space()
        start, depth = self._position, 0
        for match in _make_bracket_pattern().finditer(self._text, start):
            mark = match[0]
            depth += (mark in _OPENING_BRACKETS) - (mark in _CLOSING_BRACKETS)
            if not depth:
                self._position = match.end()
                return self._text[start + 1 : self._position - 1]
        raise MlirSyntaxError(f"no end of {self._text[start : start + 60]!r}")

    # The grammar

    def _parse_region(self) -> IRRegion:
        self._expect("{")
        blocks: list[IRBlock] = []
        while not self._accept("}"):
            label = "bb0"
            arguments: tuple[IRValue, ...] = ()
            if self._peek("^"):
                label = self._take_match(_LABEL)[0][1:]
                arguments = self._parse_block_arguments() if self._peek("(") else ()
                self._expect(":")
            operations = []
            while not self._peek("}") and not self._peek("^"):
                operations.append(self._parse_statement())
            blocks.append(IRBlock(label, arguments, tuple(operations)))
        return IRRegion(tuple(blocks))

    def _parse_block_arguments(self) -> tuple[IRValue, ...]:
        arguments = []
        for argument in _split_outside_brackets(self._take_bracketed(), ","):
            name, _, rest = argument.partition(":")
            kind, _, location = rest.partition(" loc(")
            arguments.append(
                self._define_value(name.strip(), kind, self._locations.resolve(location[:-1])[1])
            )
        return tuple(arguments)

    def _define_value(self, name: str, type_text: str, variable: str) -> IRValue:
        """Define the value of a name; if an earlier block has used it, return the one made then."""
        known = self._values.get(name)
        if known is not None and known.type.element == "?":
            object.__setattr__(known, "type", parse_type(type_text))
            object.__setattr__(known, "name", variable)
            return known
        self._value_count += 1
        self._values[name] = IRValue(self._value_count - 1, parse_type(type_text), variable)
        return self._values[name]

    def _get_operand(self, name: str) -> IRValue:
        if name not in self._values:  # a block that comes later in the text
            self._values[name] = IRValue(self._value_count, ValueType("?"))
            self._value_count += 1
        return self._values[name]

    def _parse_statement(self) -> IROperation:
        names: list[str] = []
        while self._peek("%"):
            match = self._take_match(_RESULT)
            if match[2]:
                names += [f"%{match[1]}#{index}" for index in range(int(match[2]))]
            else:
                names.append(f"%{match[1]}")
            if not self._accept(","):
                self._expect("=")
        return self._parse_operation(names)

    def _parse_operation(self, result_names: list[str]) -> IROperation:
        name = self._take_match(_STRING)[1]
        operands = [self._get_operand(used) for used in _VALUE_NAME.findall(self._take_bracketed())]
        successors: list[str] = []
        if self._accept("["):
            while not self._accept("]"):
                successors.append(self._take_match(_LABEL)[0][1:])
                self._accept(",")
        attributes: dict[str, str] = {}
        if self._peek("<{"):
            attributes |= self._parse_attributes(self._take_bracketed().strip()[1:-1])
        regions = []
        if self._peek("({"):
            self._expect("(")
            regions.append(self._parse_region())
            while self._accept(","):
                regions.append(self._parse_region())
            self._expect(")")
        if self._peek("{"):
            attributes |= self._parse_attributes(self._take_bracketed())
        self._expect(":")
        self._take_bracketed()
        self._expect("->")
        kinds = self._parse_result_types()
        source, variable = SourceLocation(), ""
        if self._accept("loc"):
            source, variable = self._locations.resolve(self._take_bracketed())
        results = tuple(
            self._define_value(result, kind, variable)
            for result, kind in zip(result_names, kinds, strict=True)
        )
        return IROperation(
            name, tuple(operands), results, attributes, source, tuple(regions), tuple(successors)
        )

    def _parse_result_types(self) -> list[str]:
        if self._peek("("):
            return _split_outside_brackets(self._take_bracketed(), ",")
        start = self._position
        match = self._take_match(_TYPE)
        if self._text.startswith("<", self._position):
            self._take_bracketed()
            return [self._text[start : self._position]]
        return [match[0]]

    @staticmethod
    def _parse_attributes(text: str) -> dict[str, str]:
        attributes = {}
        for attribute in _split_outside_brackets(text, ","):
            name = _ATTRIBUTE_NAME.match(attribute)
            if name is None:
                raise MlirSyntaxError(f"an attribute without a name: {attribute}")
            value = attribute[name.end() :].strip()
            attributes[name[0].strip('"')] = value[1:].strip() if value.startswith("=") else "unit"
        return attributes
