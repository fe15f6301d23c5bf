"""The words of each kind of violation, and the exception that carries them.

In a sentence stands the name of a fact (`facts.ViolationFacts`) in braces. A line below it is left
out where its fact is "", or the back end does not have it. Example: kind OUT_OF_BOUNDS of a store
in `copy` becomes "copy wrote 4 bytes past the end of target (its index 20, and it is int32 [20])".
"""

from __future__ import annotations

import string
from dataclasses import dataclass

from harness.sanitizer.violations.exceptions import (
    AccessRuleViolation,
    BarrierDivergence,
    DataRace,
    IntegerOverflow,
    KernelAssertion,
    MisalignedAccess,
    OutOfBounds,
    UncheckableKernel,
    UninitializedMemory,
    Violation,
)
from harness.sanitizer.violations.facts import ViolationFacts
from harness.sanitizer.violations.kinds import ViolationKind

_LAUNCH_LINES = ("{harmless}", "{launched}", "{made_of}", "{phase}")


@dataclass(frozen=True, slots=True)
class _Sentence:
    exception: type[Exception]
    headline: str
    lines: tuple[str, ...] = ()


def _make_race_sentence(words: str) -> _Sentence:
    return _Sentence(DataRace, f"{{kernel}}: {words} {{element}}, without an order")


def _make_rule_sentence(verb: str) -> _Sentence:
    headline = f"{{kernel}} {{did}} {{element}}, outside of what {{runner}} may {verb}"
    return _Sentence(AccessRuleViolation, headline, ("{excluded}",))


_SENTENCES = {
    ViolationKind.OUT_OF_BOUNDS: _Sentence(
        OutOfBounds, "{kernel} {did} {place}", ("{operation}", "{lanes}", "{neighbour}")
    ),
    ViolationKind.MISALIGNED: _Sentence(
        MisalignedAccess,
        "{kernel} {did} {size} bytes at an address that is {misalignment} bytes past a multiple of "
        "{size}: {element}",
        ("{instruction}",),
    ),
    ViolationKind.FORBIDDEN_READ: _make_rule_sentence("read"),
    ViolationKind.FORBIDDEN_WRITE: _make_rule_sentence("write"),
    ViolationKind.UNINITIALIZED_READ: _Sentence(
        UninitializedMemory, "{kernel} {did} uninitialized memory: {element}", ("{lanes}",)
    ),
    ViolationKind.UNINITIALIZED_PRODUCT: _Sentence(
        UninitializedMemory,
        "{kernel} {did} {element}, which depends on uninitialized shared memory",
        ("it was loaded by ldmatrix, and is a factor of a product (mma)",),
    ),
    ViolationKind.LANE_RACE: _make_race_sentence("two lanes of {actor} write different values to"),
    ViolationKind.WRITE_WRITE_RACE: _make_race_sentence(
        "{other} and {actor} write different values to"
    ),
    ViolationKind.ATOMIC_STORE_RACE: _make_race_sentence(
        "{other} and {actor} store and update atomically"
    ),
    ViolationKind.READ_AFTER_WRITE: _make_race_sentence("{other} writes and {actor} reads"),
    ViolationKind.WRITE_AFTER_READ: _make_race_sentence("{other} reads and {actor} writes"),
    ViolationKind.COPY_IN_PROGRESS: _Sentence(
        DataRace,
        "{kernel}: {actor} reads {element}, into which an asynchronous copy of {other_thread} has "
        "not been waited for",
        ("it is complete after cp.async.wait_group or wait_all of the thread that copies",),
    ),
    ViolationKind.COPY_WITHOUT_BARRIER: _Sentence(
        DataRace,
        "{kernel}: {actor} reads {element}, and no barrier follows the wait of {other_thread} for "
        "its asynchronous copy into it",
    ),
    ViolationKind.OVERFLOW: _Sentence(
        IntegerOverflow,
        "{kernel}: an integer overflows on its way into an address",
        (
            "{arithmetic}",
            "{verb} through that address at {access_line}",
            "which is {known_element}",
        ),
    ),
    ViolationKind.ASSERTION: _Sentence(
        KernelAssertion, "{kernel}: its own assertion fails: {message}", ("{skipped}",)
    ),
    ViolationKind.TRAP: _Sentence(KernelAssertion, "{kernel}: it stops itself (trap)"),
    ViolationKind.ENDLESS_WAIT: _Sentence(
        UncheckableKernel,
        "{kernel}: {runner} waits for another {unit}, and the checker runs them one after the "
        "other",
    ),
    ViolationKind.DIVERGENT_BARRIER: _Sentence(
        BarrierDivergence,
        "{kernel}: lanes of one warp wait at different barriers",
        ("the lane before it waits at {other_place}",),
    ),
    ViolationKind.DEADLOCK: _Sentence(
        BarrierDivergence,
        "{kernel}: threads wait in vain ({verb})",
        ("the other threads of the block wait elsewhere or have exited",),
    ),
    ViolationKind.MISSING_LANES: _Sentence(
        BarrierDivergence,
        "{kernel}: {verb} needs all 32 lanes of a warp",
        ("lanes that have exited, or that the block does not have: {missing}",),
    ),
}


def build_violation(facts: ViolationFacts) -> Exception:
    sentence = _SENTENCES[facts.kind]
    is_overflow = facts.kind is ViolationKind.OVERFLOW
    location = facts.overflow_location if is_overflow else facts.location
    known = {name: getattr(facts, name) for name in _list_names(sentence.headline)}
    headline = sentence.headline.format_map({**known, "kernel": location.kernel})
    if not issubclass(sentence.exception, Violation):
        return sentence.exception(f"{headline}\n  {location}")
    lines = []
    for line in (*sentence.lines, *_LAUNCH_LINES):
        known = {name: getattr(facts, name, "") for name in _list_names(line)}
        if "" not in known.values():
            lines.append(line.format_map(known))
    return sentence.exception(headline, location, tuple(lines))


def _list_names(text: str) -> list[str]:
    """Return the facts that a text names; the kernel's name is that of the line to show."""
    names = (name for _, name, _, _ in string.Formatter().parse(text) if name)
    return [name for name in names if name != "kernel"]
