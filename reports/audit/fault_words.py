"""The words for what deployments reach, by the kind of the fault."""

from __future__ import annotations

from typing import NamedTuple

from harness.runs.audit.deployment_ranks import OUT_OF_BOUNDS, OVERFLOW
from harness.runs.audit.findings import FindingKind


class FaultWords(NamedTuple):
    rule: str  # its id in SARIF
    description: str
    mend: str
    title: str  # of a report, behind the kernel's name


FAULT_WORDS = {
    OVERFLOW: FaultWords(
        FindingKind.OVERFLOWS,
        "An integer overflows on its way into an address",
        "Cast the number to tl.int64 before it is multiplied.",
        "an address is computed in int32 and overflows",
    ),
    OUT_OF_BOUNDS: FaultWords(
        FindingKind.OVERRUNS,
        "An access goes past the end of its tensor",
        "Mask it with the tensor's size, or make the tensor larger.",
        "an access goes past its tensor",
    ),
    "DataRace": FaultWords(
        "data-race",
        "Two programs or lanes access one element in no order",
        "Give each element one writer, or order the accesses with a barrier or an atomic.",
        "the order of accesses to one element decides the result",
    ),
    "MisalignedAccess": FaultWords(
        "misaligned-access",
        "An access of several bytes is at an address that is no multiple of their number",
        "Align the address, or access fewer bytes at once.",
        "an access is misaligned",
    ),
    "KernelAssertion": FaultWords(
        "kernel-assertion",
        "An assertion of the kernel itself fails",
        "Keep the launch within what the kernel asserts.",
        "its own assertion fails",
    ),
    "UninitializedMemory": FaultWords(
        "uninitialized-memory",
        "An element is read before it is written, or is never written",
        "Write the element first, or mask the read.",
        "an element is read before it is written, or is never written",
    ),
}
_OTHER = FaultWords(
    "kernel-fault",
    "A check of the kernel fails",
    "The message says what the check found.",
    "a check of the kernel fails",
)
ALL_FAULT_WORDS = (*FAULT_WORDS.values(), _OTHER)


def find_fault_words(kind: str) -> FaultWords:
    return FAULT_WORDS.get(kind, _OTHER)
