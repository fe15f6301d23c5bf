"""Calls, of an assertion and of `printf` alone, and the ends of a thread."""

from __future__ import annotations

from harness.sanitizer.ptx.abi import ThreadOutcome
from harness.sanitizer.ptx.instructions import Instruction, UnsupportedPtx
from harness.sanitizer.ptx.thread_code import PtxSite, ThreadCode
from harness.sanitizer.violations.kinds import ViolationKind


def emit_call(code: ThreadCode, instruction: Instruction) -> None:
    text = instruction.operation.attributes["call"]
    if "__assertfail" in text:
        words = code.find_string(code.call_arguments.get("param0"))
        site = PtxSite(instruction.operation.source, "assert", text=words or "assert")
        code.report(ViolationKind.ASSERTION, code.add_site(site))
        code.start_block(code.make_name("after_assert"))
    elif "vprintf" not in text:
        raise UnsupportedPtx(f"call {text}: a function that is not inlined")


def emit_exit(code: ThreadCode, instruction: Instruction) -> None:
    code.emit(f"ret i32 {ThreadOutcome.EXITED}")


def emit_trap(code: ThreadCode, instruction: Instruction) -> None:
    site = code.add_site(PtxSite(instruction.operation.source, "trap", text=instruction.name))
    code.report(ViolationKind.TRAP, site)
