"""Assertions that a kernel makes itself: told as what is outside is, and end no process.

The device would be lost with the first that fails, and with it every report of what it led to.
"""

from __future__ import annotations

from harness.kernels.cpu.scratch_values import OperationSite
from harness.kernels.gpu.graph_builder import GraphBuilder
from harness.kernels.gpu.report_emission import ReportEmitter, SiteReport
from harness.kernels.ir.graph import IROperation

ASSERTION_FAILED = 1 << 23  # in a report's word


def rewrite_assertion(
    operation: IROperation, code: GraphBuilder, emitter: ReportEmitter, sites: list[OperationSite]
) -> None:
    [holds] = operation.operands
    kind = holds.type.with_element("i32")
    word = code.select(holds, code.constant(0, kind), code.constant(ASSERTION_FAILED, kind))
    nowhere = code.constant(0, holds.type.with_element("i64"))
    words = operation.attributes.get("message", "").strip('"')
    sites.append(OperationSite(words, "i1", operation.source))
    emitter.report(SiteReport(len(sites) - 1, operation.source, word, nowhere))
