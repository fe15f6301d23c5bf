"""Special registers: a thread's ids, the launch's sides, masks of lanes."""

from __future__ import annotations

from harness.kernels.ptx.abi import ContextField, FrameField
from harness.kernels.ptx.instructions import Instruction, UnsupportedPtx
from harness.kernels.ptx.thread_code import ThreadCode

_SPECIAL_FIELDS: dict[str, FrameField | ContextField] = {
    "%tid.x": FrameField.TID_X,
    "%tid.y": FrameField.TID_Y,
    "%tid.z": FrameField.TID_Z,
    "%ntid.x": ContextField.BLOCK_X,
    "%ntid.y": ContextField.BLOCK_Y,
    "%ntid.z": ContextField.BLOCK_Z,
    "%ctaid.x": ContextField.CTA_X,
    "%ctaid.y": ContextField.CTA_Y,
    "%ctaid.z": ContextField.CTA_Z,
    "%nctaid.x": ContextField.GRID_X,
    "%nctaid.y": ContextField.GRID_Y,
    "%nctaid.z": ContextField.GRID_Z,
    "%dynamic_smem_size": ContextField.DYNAMIC_SHARED,
}
# Clusters of one block: what these registers hold there.
_SPECIAL_NUMBERS = {
    "%smid": 0,
    "%nsmid": 132,
    "%gridid": 0,
    "%cluster_ctarank": 0,
    "%cluster_nctarank": 1,
    "%is_explicit_cluster": 0,
    "%cluster_ctaid.x": 0,
    "%cluster_ctaid.y": 0,
    "%cluster_ctaid.z": 0,
    "%cluster_nctaid.x": 1,
    "%cluster_nctaid.y": 1,
    "%cluster_nctaid.z": 1,
}


def emit_special_register(code: ThreadCode, instruction: Instruction) -> None:
    [result] = instruction.results
    register = instruction.operation.attributes["register"]
    if register in _SPECIAL_NUMBERS:
        code.set(result, str(_SPECIAL_NUMBERS[register]), 64)
        return
    if register in _SPECIAL_FIELDS:
        field = _SPECIAL_FIELDS[register]
        is_own = isinstance(field, FrameField)
        code.set(result, code.frame_field(field) if is_own else code.load_context(field), 64)
        return
    thread = code.frame_field(FrameField.THREAD)
    lane = code.let(f"and i64 {thread}, 31")
    bit = code.let(f"shl i64 1, {lane}")
    below = code.let(f"sub i64 {bit}, 1")
    threads = code.context_field(ContextField.THREADS)
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
