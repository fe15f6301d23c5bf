"""Guards whose outcome is chance are hardly ever proven; what no runner can refuse is proven."""

from __future__ import annotations

from proving import Prove

# Chance decides the verdict: one that fails at once on the applied side is broken.
BY_CHANCE = """
import random, types
from hypothesis import settings

pytestmark = guards("toy-plain")
MANY = 12
# As numpy has it: seeded from outside, and not anew in a fork, as Python's own `random` is.
dice = random.Random()
sys.modules["numpy.random"] = types.SimpleNamespace(seed=dice.seed)

def fails(rate):
    return int.from_bytes(os.urandom(4), "big") < rate * 2**32

@pytest.mark.parametrize("rate", [0.4, 0.5, 0.6])
@pytest.mark.parametrize("number", range(MANY))
def test_plain(rate, number):
    buggy()
    assert not fails(rate)

@pytest.mark.parametrize("rate", [0.4, 0.5, 0.6])
@pytest.mark.parametrize("number", range(MANY // 3))
@settings(max_examples=2)
@given(drawn=st.integers(0, 3))
def test_example(rate, number, drawn):
    buggy()
    assert not fails(rate)

@pytest.mark.parametrize("number", range(MANY * 2))
def test_numpy(number):
    buggy()
    assert dice.random() < 0.5

@pytest.mark.parametrize("number", range(MANY // 2))
def test_clock(number):
    buggy()
    assert time.time_ns() // 1000 % 2
"""
# A guard that runs the code and finds its side by other means is beyond any runner.
BEYOND_ANY_RUNNER = """
from harness.patching.live_engine import engine

@guards("toy-plain")
def test_reads_the_file_name_of_the_code():
    forms.plain(1, 2)
    assert "revert" not in forms.plain.__code__.co_filename

@guards("toy-plain")
def test_asks_the_engine():
    forms.plain(1, 2)
    assert "revert" not in str(engine._active_changes)
"""


def test_chance_is_proven_at_most_now_and_then(prove: Prove) -> None:
    """At most once in a hundred of 78 guards: 11 would be less than one run in 10^9.

    As seldom do all 24 guards of numpy come to the same: half of them are broken, each by itself.
    """
    prove.write(BY_CHANCE)
    cells = prove.cells()
    assert len(cells) == 3 * 12 + 3 * 4 + 24 + 6
    proven = [name for name, cell in cells.items() if cell["verdict"] == "proven"]
    assert len(proven) <= 10, proven
    assert {cell["verdict"] for cell in cells.values()} >= {"flaky", "broken", "toothless"}
    drawn = {cell["verdict"] for name, cell in cells.items() if name.startswith("numpy[")}
    assert len(drawn) > 1, "forks that draw the same would all come to the same"


def test_the_guards_that_the_page_calls_irrefutable_are_proven(prove: Prove) -> None:
    """If one were refused after all, docs/prove.md would be wrong."""
    prove.write(BEYOND_ANY_RUNNER)
    assert {cell["verdict"] for cell in prove.cells().values()} == {"proven"}
