"""Reads a kernel in PTX into a graph of values: registers that are written twice become arguments.

An instruction becomes the operation `ptx.OPCODE`; its attribute `modifiers` has the rest of its
name, `groups` the sizes of its operands (a vector is a group of several values), `offset0` the
constant in the address that is operand 0. What differs between PTX and Triton's IR ends here: a
predicated instruction becomes a branch around it, a jump table a chain of comparisons, a symbol the
operation `ptx.symbol`.
"""

from __future__ import annotations

from harness.sanitizer.ir.graph import (
    IRBlock,
    IROperation,
    IRRegion,
    IRValue,
    KernelGraph,
    SourceLocation,
    ValueType,
)
from harness.sanitizer.ptx.basic_blocks import (
    BasicBlock,
    BasicBlocks,
    split_address,
    split_group,
    split_statement,
)
from harness.sanitizer.ptx.integer_bounds import MOST_THREADS
from harness.sanitizer.ptx.module_text import PtxText
from harness.sanitizer.ptx.operations import find_operation
from harness.sanitizer.ptx.parser import (
    PtxKernel,
    PtxStatement,
    PtxSyntaxError,
    bits_of_type,
    is_number,
    parse_number,
)

PREDICATE = ValueType("i1")
ADDRESS = ValueType("i64")


def read_kernel(module: PtxText, kernel: PtxKernel) -> KernelGraph:
    return _KernelReader(module, kernel).read()


class _KernelReader:
    def __init__(self, module: PtxText, kernel: PtxKernel) -> None:
        self._module, self._kernel = module, kernel
        self._blocks = BasicBlocks(kernel)
        self._value_count = 0
        self._values: dict[str, IRValue] = {}
        self._operations: list[IROperation] = []
        self._place = 0  # of the operand that is read, among the operation's values

    def read(self) -> KernelGraph:
        order, predecessors = self._blocks.order, self._blocks.predecessors
        merged = self._blocks.find_merged_registers()
        entry = order[0]
        parameters = tuple(
            self._make_value(ValueType("ptr<i8>"), parameter.name)
            for parameter in self._kernel.parameters
        )
        self._parameters = {value.name: value for value in parameters}
        self._single: dict[str, IRValue] = {}
        arguments: dict[str, dict[str, IRValue]] = {}
        for label in order:
            if len(predecessors[label]) > 1:
                arguments[label] = {
                    name: self._make_value(self._type_of(name), name) for name in merged[label]
                }
        blocks = []
        ends: dict[str, dict[str, IRValue]] = {}
        for label in order:
            values = (
                dict(arguments[label])
                if label in arguments
                else dict(ends[predecessors[label][0]])
                if label != entry
                else {}
            )
            self._operations = []
            if label == entry:
                for name in merged[entry]:
                    kinds, nowhere = (self._type_of(name),), SourceLocation()
                    [values[name]] = self._emit("ptx.undefined", (), kinds, {}, nowhere, (name,))
            self._values = values
            block = self._blocks.blocks[label]
            for statement in block.statements:
                self._read_statement(statement)
            self._read_end(block, arguments)
            ends[label] = self._values
            own = parameters if label == entry else tuple(arguments.get(label, {}).values())
            blocks.append(IRBlock(label, own, tuple(self._operations)))
        most_threads = self._kernel.head.most_threads
        attributes = {} if most_threads is None else {MOST_THREADS: str(most_threads)}
        return KernelGraph(self._kernel.name, IRRegion(tuple(blocks)), attributes=attributes)

    # Values

    def _make_value(self, value_type: ValueType, name: str = "") -> IRValue:
        self._value_count += 1
        return IRValue(self._value_count, value_type, name)

    def _type_of(self, register: str) -> ValueType:
        name = self._kernel.register_types[register]
        return ValueType(f"i{bits_of_type(name)}")

    def _emit(
        self,
        name: str,
        operands: tuple[IRValue, ...],
        types: tuple[ValueType, ...],
        attributes: dict[str, str],
        source: SourceLocation,
        names: tuple[str, ...] = (),
        successors: tuple[str, ...] = (),
    ) -> tuple[IRValue, ...]:
        names = names or ("",) * len(types)
        results = tuple(self._make_value(*typed) for typed in zip(types, names, strict=True))
        self._operations.append(
            IROperation(name, operands, results, attributes, source, (), successors)
        )
        return results

    def _read_statement(self, statement: PtxStatement) -> None:
        source = statement.source
        attributes = {"modifiers": ".".join(statement.modifiers)}
        if statement.opcode == "call":
            attributes["call"] = " ".join(statement.operands[0].split())
            self._emit("ptx.call", (), (), attributes, source)
            return
        results, texts = split_statement(statement)
        operands: list[IRValue] = []
        groups = []
        for text in texts:
            self._place = len(operands)
            group = self._read_operand(text, attributes, source)
            operands += group
            groups.append(str(len(group)))
        attributes["groups"] = ",".join(groups)
        if "_" in results:
            attributes["sinks"] = ",".join(
                str(place) for place, name in enumerate(results) if name == "_"
            )
        types = tuple(self._type_of(name) if name != "_" else ValueType("i64") for name in results)
        values = self._emit(
            f"ptx.{statement.opcode}", tuple(operands), types, attributes, source, tuple(results)
        )
        for name, value in zip(results, values, strict=True):
            if name != "_":
                self._values[name] = self._single[name] = value

    def _read_operand(
        self, text: str, attributes: dict[str, str], source: SourceLocation
    ) -> list[IRValue]:
        if text.startswith("{"):
            return [
                value
                for part in split_group(text)
                for value in self._read_operand(part, attributes, source)
            ]
        if text.startswith("!"):
            inner = self._read_operand(text[1:].strip(), attributes, source)
            return list(
                self._emit("ptx.not", tuple(inner), (PREDICATE,), {"modifiers": "pred"}, source)
            )
        if text.startswith("["):
            address = split_address(text)
            if address is None:
                attributes["address"] = text[1:-1]  # a tensor's coordinates: [map, {x, y}]
                return []
            base, offset = address
            attributes[f"offset{self._place}"] = str(offset)
            return self._read_operand(base, attributes, source)
        if text in self._kernel.register_types:
            return [self._read_register(text)]
        if text in self._parameters:
            return [self._parameters[text]]
        if is_number(text):
            return self._emit_constant(parse_number(text), source)
        if text == "WARP_SZ":
            return self._emit_constant(32, source)
        if text.startswith("%"):
            return list(self._emit("ptx.special", (), (ADDRESS,), {"register": text}, source))
        symbol, _, offset_text = text.partition("+")
        variable = self._kernel.variables.get(symbol) or self._module.variables.get(symbol)
        if variable is not None:
            names = {"symbol": symbol, "space": variable.space, "plus": offset_text or "0"}
            return list(self._emit("ptx.symbol", (), (ADDRESS,), names, source))
        if text == "_":
            return self._emit_constant(0, source)
        if "param" not in attributes["modifiers"].split("."):
            raise PtxSyntaxError(f"the operand {text}")
        attributes["symbol"] = text  # a parameter or the result of a call
        return []

    def _emit_constant(self, number: int, source: SourceLocation) -> list[IRValue]:
        attributes = {"value": str(number)}
        return list(self._emit("ptx.constant", (), (ADDRESS,), attributes, source))

    def _read_register(self, name: str) -> IRValue:
        value = self._values.get(name) or self._single.get(name)
        if value is None:
            raise PtxSyntaxError(f"the register {name} is read and never written")
        return value

    def _read_end(self, block: BasicBlock, arguments: dict[str, dict[str, IRValue]]) -> None:
        def pass_values(label: str) -> tuple[IRValue, ...]:
            return tuple(self._read_register(name) for name in arguments.get(label, {}))

        source = block.source
        if not block.targets:
            last = block.statements[-1].opcode if block.statements else ""
            if not find_operation(last).ends_thread:
                self._emit("ptx.ret", (), (), {"modifiers": ""}, source)
            return
        if len(block.targets) == 1 or block.targets[0] == block.targets[1]:
            target = block.targets[0]
            self._emit("cf.br", pass_values(target), (), {}, source, (), (target,))
            return
        if block.jump_register is not None:
            register, number = block.jump_register
            constant = self._emit_constant(number, source)
            operands = (self._read_register(register), *constant)
            attributes = {"modifiers": "eq.u32", "groups": "1,1"}
            [condition] = self._emit("ptx.setp", operands, (PREDICATE,), attributes, source)
        else:
            condition = self._read_register(block.condition)
        true, false = block.targets
        if block.is_negated:
            true, false = false, true
        if_true, if_false = pass_values(true), pass_values(false)
        sizes = f"array<i32: 1, {len(if_true)}, {len(if_false)}>"
        self._emit(
            "cf.cond_br",
            (condition, *if_true, *if_false),
            (),
            {"operandSegmentSizes": sizes},
            source,
            (),
            (true, false),
        )
