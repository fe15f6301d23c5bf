"""Functions in LLVM that report threads which wait in vain, or apart from each other."""

from __future__ import annotations

from harness.kernels.cpu.llvm_text import LlvmFunction
from harness.kernels.ptx.abi import FrameField, PtxViolationKind
from harness.kernels.ptx.thread_code import emit_report


def build_wait_reports() -> str:
    """Build the functions that report threads which wait in vain."""
    wait = LlvmFunction(
        "define internal void @ptx_report_wait(ptr %context, ptr %frame, i64 %asks)"
    )
    site = wait.load_field("%frame", FrameField.SITE)
    emit_report(wait, PtxViolationKind.DEADLOCK, site, "0", "0", "0", "%asks")
    wait.emit("ret void")
    apart = LlvmFunction(
        "define internal void @ptx_report_divergence(ptr %context, ptr %frame, i64 %other)"
    )
    site = apart.load_field("%frame", FrameField.SITE)
    emit_report(apart, PtxViolationKind.DIVERGENT_BARRIER, site, "0", "0", "0", "%other")
    apart.emit("ret void")
    return f"{wait}\n{apart}"
