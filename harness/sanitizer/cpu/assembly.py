"""PTX in a kernel (`tl.inline_asm_elementwise`): a function that runs one block on a few lanes.

The block becomes the body of a kernel in PTX, which PTX's own reader and emitters turn into LLVM's
assembly. Each register of the constraints is a parameter or a result, of one element or of several
narrow ones packed into it. Example: with "=r,r", `shl.b32 $0, $1, 2;` is

    .entry assembly() { .reg .b32 %arg0; .reg .b32 %arg1; shl.b32 %arg0, %arg1, 2;
                        mov.b32 %out0, %arg0; }

in which `%arg1` is undefined to the reader, and so a parameter here. What needs a thread, memory or
other lanes is refused by name.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from harness.sanitizer.cpu import approximations
from harness.sanitizer.cpu.control_flow import ControlFlowLowering
from harness.sanitizer.ir.flow import list_branch_targets
from harness.sanitizer.ir.graph import IROperation, KernelGraph
from harness.sanitizer.llvm.number_formats import UnsupportedOnCpu, llvm_type, llvm_type_bits
from harness.sanitizer.llvm.text import LlvmFunction
from harness.sanitizer.ptx.float_ops import emit_float
from harness.sanitizer.ptx.instructions import Instruction, UnsupportedPtx, is_float_type
from harness.sanitizer.ptx.module_text import PtxText
from harness.sanitizer.ptx.operations import find_operation
from harness.sanitizer.ptx.parser import PtxSyntaxError
from harness.sanitizer.ptx.reader import read_kernel
from harness.sanitizer.ptx.thread_code import ThreadCode

_CONSTRAINT_BITS = {"b": 1, "h": 16, "r": 32, "f": 32, "l": 64, "d": 64}
_DECIMAL = re.compile(r"(?<![\w.$%])-?(?:\d+\.\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w.])")


@dataclass(frozen=True, slots=True)
class AssemblyBlock:
    """A block with the widths of its registers, results first, and what each takes its value from.

    `sources`: by register; of an operand with the constraint "0" also the result's register.
    """

    text: str
    widths: tuple[int, ...]
    sources: dict[str, int]
    result_count: int

    def read(self) -> tuple[KernelGraph, list[str]]:
        """Read its graph and the names of its instructions."""
        lines = [
            f".reg .{_name_type(width)} %arg{place};" for place, width in enumerate(self.widths)
        ]
        lines.append(self.text)
        for place, width in enumerate(self.widths[: self.result_count]):
            kind = _name_type(width)
            lines.append(f".reg .{kind} %out{place}; mov.{kind} %out{place}, %arg{place};")
        body = "\n".join(lines)
        module = PtxText(f".entry assembly()\n{{\n{body}\n}}")
        kernel = module.read_kernel("assembly")
        return read_kernel(module, kernel), [statement.name for statement in kernel.statements]


def _name_type(width: int) -> str:
    return "pred" if width == 1 else f"b{width}"


def get_group_size(operation: IROperation) -> int:
    """Return how many elements one run of the block takes of each operand."""
    return operation.get_int("packed_element", 1)


def _make_block(operation: IROperation, result_count: int) -> AssemblyBlock:
    words = operation.attributes.get("constraints", "").strip('"').split(",")
    names = [word.strip(" =&+") for word in words if word.strip() and word.strip()[0] != "~"]
    widths: list[int] = []
    sources: dict[str, int] = {}
    for place, name in enumerate(names):
        if name.isdigit():
            sources[f"%arg{name}"] = place
        elif name not in _CONSTRAINT_BITS:
            raise UnsupportedOnCpu(f"inline assembly: the constraint {name}")
        widths.append(widths[int(name)] if name.isdigit() else _CONSTRAINT_BITS[name])
        if place >= result_count:
            sources[f"%arg{place}"] = place
    text = operation.attributes.get("asm_string", "").strip('"')
    text = text.replace("\\0A", "\n").replace("\\09", "\t")
    text = re.sub(r"//[^\n]*", "", text).strip()
    if text and text[-1] not in ";}":
        text += ";"
    text = ";".join(map(_encode_decimals, text.split(";")))
    text = re.sub(r"\$(\d+)", r"%arg\1", text).replace("$$", "$")
    return AssemblyBlock(text, tuple(widths), sources, result_count)


def _encode_decimals(statement: str) -> str:
    """Write decimal numbers as bits, which the type of their instruction decides."""

    def encode(match: re.Match[str]) -> str:
        if re.search(r"\.f64\b", statement):
            return f"0d{struct.pack('>d', float(match[0])).hex()}"
        return f"0f{struct.pack('>f', float(match[0])).hex()}"

    return _DECIMAL.sub(encode, statement)


def lower_assembly(emitter: ControlFlowLowering, operation: IROperation) -> None:
    """Run a block on each group of lanes, the last group filled with its last."""
    size, code = get_group_size(operation), emitter.code
    places = [*_place_registers(operation, size)]
    result_count = sum(len(names) for _, _, names in places[: len(operation.results)])
    block = _make_block(operation, result_count)
    number = sum(len(names) for _, _, names in places)
    if number > len(block.widths):
        count = f"{len(block.widths)} constraints for {number} registers"
        raise UnsupportedOnCpu(f"inline assembly: {count}")
    function = _emit_function(emitter, block)
    lanes = max(1, operation.results[0].type.lanes)
    emitter.materialize(*operation.operands)
    buffers = [emitter.allocate_for_type(result.type) for result in operation.results]
    bases = [emitter.emit_buffer_address(buffer) for buffer in buffers]
    outputs = [code.alloca(f"i{width}") for width in block.widths[:result_count]]
    with code.loop(-(-lanes // size)) as group:
        start = code.let(f"mul i64 {group}, {size}")
        indices = [
            code.let(
                f"call i64 @llvm.umin.i64(i64 {code.let(f'add i64 {start}, {place}')},"
                f" i64 {lanes - 1})"
            )
            for place in range(size)
        ]
        arguments = [f"ptr {output}" for output in outputs]
        for operand, (kind, per_register, names) in zip(
            operation.operands, places[len(operation.results) :], strict=True
        ):
            values = [emitter.emit_lane(operand, index, {})[0] for index in indices]
            for place, name in enumerate(names):
                packed = values[place * per_register : (place + 1) * per_register]
                width = block.widths[name]
                arguments.append(f"i{width} {_pack_lanes(code, packed, kind, width)}")
        code.emit(f"call void @{function}({', '.join(arguments)})")
        for result, base, (kind, per_register, names) in zip(
            operation.results, bases, places[: len(operation.results)], strict=True
        ):
            for lane in reversed(range(size)):
                name, width = names[lane // per_register], block.widths[names[lane // per_register]]
                bits = code.load(f"i{width}", outputs[name])
                value = _unpack_lane(code, bits, width, kind, lane % per_register)
                emitter.emit_lane_store(value, base, result.type.element, indices[lane])
    for result, buffer in zip(operation.results, buffers, strict=True):
        emitter.set_result_buffer(result, buffer)


def _place_registers(operation: IROperation, size: int) -> Iterator[tuple[str, int, list[int]]]:
    """Yield for each result and operand its type, the elements of a register, and its registers."""
    number = 0
    for value in (*operation.results, *operation.operands):
        kind = llvm_type(value.type.element)
        per_register = min(size, max(1, 32 // llvm_type_bits(kind)))
        count = -(-size // per_register)
        yield kind, per_register, [*range(number, number + count)]
        number += count


def _resize_number(code: LlvmFunction, number: str, width: int, target: int) -> str:
    if width == target:
        return number
    return code.let(f"{'trunc' if width > target else 'zext'} i{width} {number} to i{target}")


def _pack_lanes(code: LlvmFunction, values: list[str], kind: str, width: int) -> str:
    """Put elements into a register, the first one lowest."""
    bits, total = llvm_type_bits(kind), "0"
    for place, value in enumerate(values):
        number = value if kind[0] == "i" else code.let(f"bitcast {kind} {value} to i{bits}")
        number = _resize_number(code, number, bits, width)
        if place:
            number = code.let(f"shl i{width} {number}, {place * bits}")
        total = number if not place else code.let(f"or i{width} {total}, {number}")
    return total


def _unpack_lane(code: LlvmFunction, number: str, width: int, kind: str, place: int) -> str:
    bits = llvm_type_bits(kind)
    if place:
        number = code.let(f"lshr i{width} {number}, {place * bits}")
    number = _resize_number(code, number, width, bits)
    return number if kind[0] == "i" else code.let(f"bitcast i{bits} {number} to {kind}")


# The function


def _emit_function(emitter: ControlFlowLowering, block: AssemblyBlock) -> str:
    """Emit the function of a block, from its operands' registers to stack slots of its results."""
    try:
        graph, names = block.read()
        for name in names:
            if approximations.is_approximate(name):
                emitter.mark_approximation(f"inline assembly: {name}")
        name = f"assembly{len(emitter.global_definitions)}"
        emitter.global_definitions.append(_BlockFunction(name, block, graph).text)
    except (UnsupportedPtx, PtxSyntaxError) as error:
        raise UnsupportedOnCpu(f"inline assembly: {error}") from error
    return name


class _BlockFunction:
    def __init__(self, name: str, block: AssemblyBlock, graph: KernelGraph) -> None:
        widths, count = block.widths, block.result_count
        parameters = [f"ptr %out{place}" for place in range(count)]
        parameters += [f"i{widths[place]} %in{place}" for place in range(count, len(widths))]
        constants = {
            operation.result: int(operation.attributes["value"])
            for operation in graph.walk()
            if operation.name == "ptx.constant"
        }
        header = f"define internal void @{name}({', '.join(parameters)}) alwaysinline"
        self._block, self._graph = block, graph
        self.code = code = ThreadCode(constants, header)
        self._labels = {one.label: f"block{place}" for place, one in enumerate(graph.body.blocks)}
        code.jump(self._labels[graph.body.blocks[0].label])
        for one in graph.body.blocks:
            code.start_block(self._labels[one.label])
            for operation in one.operations:
                self._emit(operation)
        self.text = str(code)

    def _emit(self, operation: IROperation) -> None:
        code, name = self.code, operation.name
        if name == "ptx.constant":
            return
        if name == "ptx.ret":
            code.emit("ret void")
            return
        if name in ("cf.br", "cf.cond_br"):
            self._emit_branch(operation)
            return
        if name == "ptx.undefined":
            source = self._block.sources.get(operation.result.name)
            bits = operation.result.type.bits
            code.set(operation.result, "0" if source is None else f"%in{source}", bits)
            return
        instruction, row = Instruction(operation), find_operation(name)
        if row.access or row.waits or row.ends_thread:
            raise instruction.refuse()
        before = len(code._lines)
        try:
            if row.emit_float is not None and is_float_type(instruction.type):
                emit_float(code, instruction, row.emit_float)
            elif row.emit is None:
                raise instruction.refuse()
            else:
                row.emit(code, instruction)
        except (IndexError, KeyError, ValueError) as error:  # other operands than it takes
            raise instruction.refuse() from error
        if any("%frame" in line or "%context" in line for line in code._lines[before:]):
            raise instruction.refuse()
        for result in operation.results:
            if re.fullmatch(r"%out\d+", result.name):
                bits = result.type.bits
                code.store(f"i{bits}", code.get(result, bits), result.name)

    def _emit_branch(self, operation: IROperation) -> None:
        code, arguments = self.code, {one.label: one.arguments for one in self._graph.body.blocks}
        targets = list_branch_targets(operation)
        edges = [code.make_name("edge") for _ in targets]
        if len(targets) == 1:
            code.jump(edges[0])
        else:
            condition = code.get(operation.operands[0], 1)
            code.emit(f"br i1 {condition}, label %{edges[0]}, label %{edges[1]}")
        for edge, (label, values) in zip(edges, targets, strict=True):
            code.start_block(edge)
            code.copy_values(values, arguments[label])
            code.jump(self._labels[label])
