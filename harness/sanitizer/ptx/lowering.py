"""Compiles a kernel's graph to LLVM: one function that runs a thread up to its next suspension."""

from __future__ import annotations

from dataclasses import dataclass

from harness.sanitizer.ir.flow import list_branch_targets, map_defining_operations
from harness.sanitizer.ir.graph import FileLine, IRBlock, IROperation, IRValue, KernelGraph
from harness.sanitizer.llvm.number_formats import select_called_helpers
from harness.sanitizer.ptx.abi import ContextField, FrameField
from harness.sanitizer.ptx.float_ops import emit_float
from harness.sanitizer.ptx.flow import (
    find_live_after,
    find_live_out,
    find_loop_blocks,
    find_pointers,
    list_pointer_operands,
    may_spin,
    synchronizes_blocks,
)
from harness.sanitizer.ptx.instructions import Instruction, is_float_type, space_of
from harness.sanitizer.ptx.matrix_ops import build_matrix_helpers
from harness.sanitizer.ptx.module_text import PtxText
from harness.sanitizer.ptx.operations import find_operation
from harness.sanitizer.ptx.overflow_flow import analyze_overflow
from harness.sanitizer.ptx.overflow_ops import OverflowTracking
from harness.sanitizer.ptx.parser import PtxKernel, bits_of_type
from harness.sanitizer.ptx.thread_code import PtxSite, ThreadCode
from harness.sanitizer.ptx.uninitialized_words import UninitializedWords
from harness.sanitizer.ptx.used_bytes import UsedBytes
from harness.sanitizer.ptx.variables import PlacedVariable, place_variables
from harness.sanitizer.ptx.warp_ops import emit_spin


@dataclass(frozen=True, slots=True)
class LoweredPtx:
    """A kernel in LLVM's assembly, with what a launch has to know about it."""

    text: str
    sites: tuple[PtxSite, ...]
    variables: tuple[PlacedVariable, ...]  # region `place + 1` is that of variable `place`
    frame_size: int
    local_size: int
    shared_size: int  # without dynamic shared memory, which starts there
    block_lines: tuple[frozenset[FileLine], ...]
    access_sizes: frozenset[int]  # of accesses outside of shared and local memory
    shared_access_sizes: frozenset[int]
    blocks_synchronize: bool
    copies_to_shared: bool  # asynchronously: a read has to wait for them


class PtxLowering:
    def __init__(
        self, module: PtxText, kernel: PtxKernel, graph: KernelGraph, tracks_overflow: bool = True
    ) -> None:
        self._module, self._kernel, self._graph = module, kernel, graph
        self._constants = {
            operation.result: int(operation.attributes["value"])
            for operation in graph.walk()
            if operation.name == "ptx.constant"
        }
        self._definitions = map_defining_operations(graph)
        self.code = ThreadCode(self._constants)
        self.code.used_bytes = UsedBytes(graph)
        self.code.find_string = self._find_string
        self.code.companions["r"] = dict.fromkeys(find_pointers(graph), "i32")
        self._overflow = (
            OverflowTracking(self.code, analyze_overflow(graph)) if tracks_overflow else None
        )
        self._uninitialized = UninitializedWords(self.code, graph)
        self._variables, self._sizes = place_variables(module, kernel, graph)
        self._numbers = {
            placed.variable.name: number for number, placed in enumerate(self._variables)
        }
        self._in_loop = False

    def lower(self) -> LoweredPtx:
        code, graph = self.code, self._graph
        resume = code.load("i64", code.element_pointer("%frame", "i64", FrameField.RESUME))
        place = len(code._lines)
        code._lines.append("")
        code.start_block("start")
        parameters = code.get_context(ContextField.PARAMETERS)
        for value, parameter in zip(graph.parameters, self._kernel.parameters, strict=True):
            code.set(value, code.let(f"add i64 {parameters}, {parameter.offset}"), 64)
        live_out, loops = find_live_out(graph), find_loop_blocks(graph)
        names = {block.label: f"block{number}" for number, block in enumerate(graph.body.blocks)}
        self._block_names = names
        code.jump(names[graph.body.block.label])
        block_lines = []
        for number, block in enumerate(graph.body.blocks):
            code.start_block(names[block.label])
            self._in_loop = block.label in loops
            self._emit_ran(number)
            living = find_live_after(block, live_out[block.label])
            for operation in block.operations:
                alive = living[operation] - set(operation.results)
                saved = sorted(
                    (value for value in alive if value not in self._constants),
                    key=lambda value: value.number,
                )
                self._emit(operation, saved)
            block_lines.append(_list_lines(block))
        cases = " ".join(f"i64 {k}, label %resume{k}" for k in range(1, code.resume_count + 1))
        code._lines[place] = f"  switch i64 {resume}, label %start [ {cases} ]"
        text = str(code)
        text += build_matrix_helpers(text)
        global_sizes, shared_sizes = self._collect_access_sizes()
        return LoweredPtx(
            text + select_called_helpers(text) + declare_externals(text),
            tuple(code.sites),
            self._variables,
            code.frame_fields * 8,
            self._sizes["local"],
            self._sizes["shared"],
            tuple(block_lines),
            global_sizes,
            shared_sizes,
            synchronizes_blocks(graph),
            "@ptx_begin_copy(" in text,
        )

    def _emit_ran(self, number: int) -> None:
        flags = self.code.to_pointer(self.code.get_context(ContextField.RAN_FLAGS))
        self.code.store_element("i8", "1", flags, number)

    # Variables

    def _collect_access_sizes(self) -> tuple[frozenset[int], frozenset[int]]:
        global_sizes, shared_sizes = set(), set()
        for operation in self._graph.walk():
            if not find_operation(operation.name).access:
                continue
            instruction = Instruction(operation)
            space = space_of(instruction)
            size = bits_of_type(instruction.type) // 8
            if space in ("shared", "generic"):
                shared_sizes.add(size)
            if space in ("global", "generic"):
                global_sizes.add(size)
        return frozenset(global_sizes), frozenset(shared_sizes)

    # Operations

    def _emit(self, operation: IROperation, living: list[IRValue]) -> None:
        name = operation.name
        if name == "ptx.constant":
            return
        if name == "cf.br" or name == "cf.cond_br":
            self._emit_branch(operation)
            return
        if name == "ptx.undefined":
            # What a card's register holds by chance: the largest integer, and no number as a float.
            bits = operation.result.type.bits
            self.code.set(operation.result, str((1 << max(bits - 1, 1)) - 1), bits)
            for of in ("r", "w", "o", "t", "u"):
                self.code.set_companion(operation.result, of, "0")
            return
        if name == "ptx.symbol":
            self._emit_symbol(operation)
            return
        instruction = Instruction(operation)
        if self._in_loop and may_spin(instruction):
            emit_spin(self.code, instruction, living)
        row = find_operation(name)
        if row.emit_float is not None and is_float_type(instruction.type):
            emit_float(self.code, instruction, row.emit_float)
        elif row.emit is None:
            raise instruction.refuse()
        else:
            row.emit(self.code, instruction, *([living] if row.waits else ()))
        self._emit_regions(operation)
        self._uninitialized.emit(operation)
        if self._overflow is not None:
            self._overflow.emit(operation)

    def _emit_symbol(self, operation: IROperation) -> None:
        code = self.code
        number = self._numbers[operation.attributes["symbol"]]
        placed = self._variables[number]
        if placed.variable.space == "shared":
            address = str(placed.offset)
        elif placed.variable.space == "local":
            address = code.let(f"add i64 {code.get_frame(FrameField.LOCAL)}, {placed.offset}")
        else:
            table = code.to_pointer(code.get_context(ContextField.VARIABLES))
            address = code.load_field(table, number)
        plus = int(operation.attributes["plus"], 0)
        address = code.let(f"add i64 {address}, {plus}")
        code.set(operation.result, address, 64)
        code.set_companion(operation.result, "r", str(number + 1))

    def _find_string(self, value: IRValue | None) -> str:
        """Find the string that a value points at, such as the text of an assertion."""
        while value is not None:
            operation = self._definitions.get(value)
            if operation is None:
                break
            if operation.name == "ptx.symbol":
                variable = self._module.variables.get(operation.attributes["symbol"])
                contents = b"" if variable is None else variable.contents
                return contents.partition(b"\0")[0].decode(errors="replace")
            value = operation.operands[0] if operation.operands else None
        return ""

    def _emit_branch(self, operation: IROperation) -> None:
        code = self.code
        blocks = {block.label: block for block in self._graph.body.blocks}
        targets = list_branch_targets(operation)
        if len(targets) == 1:
            label, values = targets[0]
            code.copy_values(values, blocks[label].arguments)
            code.jump(self._block_names[label])
            return
        condition = code.get(operation.operands[0], 1)
        edges = [code.make_name("edge") for _ in targets]
        code.emit(f"br i1 {condition}, label %{edges[0]}, label %{edges[1]}")
        for edge, (label, values) in zip(edges, targets, strict=True):
            code.start_block(edge)
            code.copy_values(values, blocks[label].arguments)
            code.jump(self._block_names[label])

    # The region that a pointer points into

    def _emit_regions(self, operation: IROperation) -> None:
        code = self.code
        for result in operation.results:
            if not code.has_companion(result, "r"):
                continue
            if find_operation(operation.name).access == "read" and result.type.bits == 64:
                continue  # the load itself has set it
            regions = [
                code.get_companion(operand, "r") for operand in list_pointer_operands(operation)
            ]
            if operation.name == "ptx.selp":
                truth = code.get(operation.operands[2], 1)
                region = code.let(f"select i1 {truth}, i32 {regions[0]}, i32 {regions[1]}")
            elif len(regions) == 2 and "0" not in regions:
                empty = code.let(f"icmp eq i32 {regions[0]}, 0")
                region = code.let(f"select i1 {empty}, i32 {regions[1]}, i32 {regions[0]}")
            else:
                region = next((number for number in regions if number != "0"), "0")
            code.set_companion(result, "r", region)


_EXTERNALS = {
    **dict.fromkeys(("exp2", "log2", "sin", "cos", "tanh"), "declare double @{name}(double)"),
    **dict.fromkeys(
        ("ptx_read", "ptx_write", "ptx_update", "ptx_peek", "ptx_poke"),
        "declare i32 @{name}(ptr, ptr, i64, i64, i64, i32, i32, ptr)",
    ),
    "ptx_mbarrier": "declare i64 @{name}(ptr, i64, i64, i64, i64)",
    "ptx_begin_copy": "declare void @{name}(ptr, ptr, i64, i64)",
    "ptx_load_row": "declare i32 @{name}(ptr, i64, i32, ptr)",
    "ptx_store_uninitialized": "declare i32 @{name}(ptr, ptr, i64, i64, i64, i32)",
    "ptx_record": "declare i32 @{name}(ptr, i64, i64, i64)",
    "ptx_classify": "declare i32 @{name}(ptr, i64, i64, i1)",
}


def declare_externals(text: str) -> str:
    lines = [
        declaration.format(name=name)
        for name, declaration in _EXTERNALS.items()
        if f"@{name}(" in text
    ]
    return "\n".join(lines) + "\n"


def _list_lines(block: IRBlock) -> frozenset[FileLine]:
    return frozenset(
        place.line_key for operation in block.operations for place in operation.source.chain
    )
