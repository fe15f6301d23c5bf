"""The mark of each verdict of a proof, and the phrases for its sides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from harness.core.outcomes import Outcome, Verdict
from reports.shared.marks import make_marks

# From the worst to the mildest: a box with several guards shows the first of these.
MARKS = make_marks("""
    segfault     | SEG | ✖ | death     | A side died by a segmentation fault.
    abort        | ABR | ✖ | death     | A side aborted its process.
    signal       | SIG | ✖ | death     | A side was ended by another signal.
    hang         | HNG | ∞ | death     | A side ran past its time limit.
    out-of-memory| OOM | ▣ | death     | A side ran out of memory.
    cuda-error   | CUD | ✖ | death     | A side ended in an error of CUDA.
    broken       | BRK | ✕ | broken    | The guard fails with the fix applied, or cannot run at \
all: its failure without the fix proves nothing.
    flaky        | FLK | ~ | broken    | The same test failed and passed: chance decides, so a \
failure proves nothing.
    undrawn      | UND | ≁ | broken    | The example that fails with the fix reverted is drawn \
otherwise with it applied, so nothing was compared there.
    toothless    | TTH | ○ | toothless | The guard passes with the fix reverted, although the \
toggled code ran: it would not notice the bug.
    differs      | DIF | ≠ | broken    | Running this release contradicts its sources.
    unreached    | UNR | ? | unreached | The toggled code never ran, so the result says nothing.
    stale        | STA | ≈ | stale     | The code exists and neither form of the toggle matches \
it: the toggle needs a new variant.
    unguarded    | NOG | ∅ | stale     | No guard names this toggle: a lost fix would go unnoticed.
    missing      | ??? | … | missing   | The run ended before this was done.
    proven       | ok  | ✓ | good      | The guard passes with the fix applied and fails with the \
fix reverted, and the toggled code ran both times.
    has the bug  | BUG | ▲ | bug       | As it is, this release has the bug: the guard fails.
    has the fix  | fix | ● | fix       | As it is, this release has the fix: the guard passes.
    listed       | lst | ◌ | quiet     | No guard names this toggle, as the list of exceptions \
expects, for the reason given.
    eval only    | EVL | ◇ | quiet     | No guard reaches this toggle: the evaluation beside its \
name plants it.
    n/a          | n/a | - | quiet     | The guard cannot apply here, for the reason given.
    not run      |     |   | quiet     | This run did not include it.
    absent       | ·   | · | quiet     | The code of this toggle is not in this release.
""")
SEVERITY = {word: place for place, word in enumerate(MARKS)}

# The mark of the observed state, by the state from the sources.
STATE_WORDS = {"buggy": "has the bug", "fixed": "has the fix"}

# In the order in which reports show the sides.
SIDE_PHRASES = {
    "fixed": "with the fix applied",
    "buggy": "with the fix reverted",
    "as is": "as the release is",
}


def get_verdict_word(verdict: Verdict | None) -> str:
    return verdict.value if verdict else "missing"


def choose_worst(words: Iterable[str]) -> str:
    return min(words, key=lambda word: SEVERITY.get(word, -1))


def describe_counts(
    counts: Mapping[str, int], leading_words: tuple[str, ...] = ("proven",)
) -> list[str]:
    """Describe counts: the leading words first, then from the worst to the mildest."""
    order = sorted(counts, key=lambda word: (word not in leading_words, SEVERITY.get(word, -1)))
    return [f"{counts[word]} {word.replace('has', 'with')}" for word in order if counts[word]]


def describe_side(side: str, outcome: Outcome, reach: int) -> str:
    """Describe one side: 'passed with the fix reverted, its code ran 16 times'."""
    times = "once" if reach == 1 else f"{reach} times"
    ran = f"its code ran {times}" if reach else "its code never ran"
    return f"{outcome.value} {SIDE_PHRASES.get(side, side)}, {ran}"


def get_test_name(guard: str) -> str:
    """Return a test's name without its file."""
    return guard.partition("::")[2] or guard


def get_guard_file(guard: str) -> str:
    return guard.partition("::")[0]
