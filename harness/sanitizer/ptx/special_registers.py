"""Special registers: a thread's ids, the launch's sides, masks of lanes."""

from __future__ import annotations

from harness.sanitizer.ptx.abi import ContextField, FrameField
from harness.sanitizer.ptx.instructions import Instruction, UnsupportedPtx
from harness.sanitizer.ptx.thread_code import ThreadCode

_FRAME_FIELDS = {f"%tid.{axis}": FrameField[f"TID_{axis.upper()}"] for axis in "xyz"}
_CONTEXT_FIELDS = {
    f"%{register}.{axis}": ContextField[f"{name}_{axis.upper()}"]
    for register, name in (("ntid", "BLOCK"), ("ctaid", "CTA"), ("nctaid", "GRID"))
    for axis in "xyz"
} | {"%dynamic_smem_size": ContextField.DYNAMIC_SHARED}
# Clusters of one block: what these registers hold there.
_SPECIAL_NUMBERS = {
    "%smid": 0,
    "%nsmid": 132,
    "%gridid": 0,
    "%cluster_ctarank": 0,
    "%cluster_nctarank": 1,
    "%is_explicit_cluster": 0,
    **{f"%cluster_ctaid.{axis}": 0 for axis in "xyz"},
    **{f"%cluster_nctaid.{axis}": 1 for axis in "xyz"},
}
_CLOCKS = ("%clock", "%clock64", "%globaltimer", "%globaltimer_lo")  # this machine's


def emit_special_register(code: ThreadCode, instruction: Instruction) -> None:
    [result] = instruction.results
    register = instruction.operation.attributes["register"]
    if register in _SPECIAL_NUMBERS:
        code.set(result, str(_SPECIAL_NUMBERS[register]), 64)
        return
    if register in _CLOCKS:
        code.set(result, code.let("call i64 @llvm.readcyclecounter()"), 64)
        return
    if register in _FRAME_FIELDS:
        code.set(result, code.get_frame(_FRAME_FIELDS[register]), 64)
        return
    if register in _CONTEXT_FIELDS:
        code.set(result, code.get_context(_CONTEXT_FIELDS[register]), 64)
        return
    thread = code.get_frame(FrameField.THREAD)
    lane = code.let(f"and i64 {thread}, 31")
    bit = code.let(f"shl i64 1, {lane}")
    below = code.let(f"sub i64 {bit}, 1")
    threads = code.get_context(ContextField.THREADS)
    above_or_equal = code.let(f"and i64 {code.let(f'xor i64 {below}, -1')}, {0xFFFFFFFF}")
    name = {
        "%laneid": lane,
        "%warpid": code.let(f"lshr i64 {thread}, 5"),
        "%nwarpid": code.let(f"lshr i64 {code.let(f'add i64 {threads}, 31')}, 5"),
        "%lanemask_eq": bit,
        "%lanemask_lt": below,
        "%lanemask_le": code.let(f"or i64 {below}, {bit}"),
        "%lanemask_ge": above_or_equal,
        "%lanemask_gt": code.let(f"xor i64 {above_or_equal}, {bit}"),
    }.get(register)
    if name is None:
        raise UnsupportedPtx(f"the register {register}")
    code.set(result, name, 64)
