"""Assertions that a kernel makes itself: told as what is outside is, and end no process.

The device would be lost with the first that fails, and with it every report of what it led to.
"""

from __future__ import annotations

from harness.compiled.building import Builder
from harness.compiled.telling import Teller, Told
from harness.kernels.graph import Operation
from harness.native.lanes import Site

FAILED = 1 << 23  # in a report's word


def told(operation: Operation, code: Builder, teller: Teller, sites: list[Site]) -> None:
    [holds] = operation.operands
    kind = holds.kind.of("i32")
    word = code.chosen(holds, code.constant(0, kind), code.constant(FAILED, kind))
    nowhere = code.constant(0, holds.kind.of("i64"))
    words = operation.attributes.get("message", "").strip('"')
    sites.append(Site(words, "i1", operation.source))
    teller.tell(Told(len(sites) - 1, operation.source, word, nowhere))
