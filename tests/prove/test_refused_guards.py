"""Guards written to be called proven without noticing their bug: each is refused, with a reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from proving import Prove, by_guard

SURE = """
import asyncio, itertools, random, warnings
from hypothesis import settings, Phase, example

pytestmark = guards("toy-plain")

@given(number=st.nothing())
def test_has_no_examples(number):
    assert not buggy()

@settings(phases=())
@given(number=st.integers())
def test_runs_no_examples(number):
    assert not buggy()

@pytest.mark.parametrize("number", [])
def test_has_no_parameters(number):
    assert not buggy()

@pytest.mark.xfail
def test_expected_to_fail():
    assert not buggy()

@pytest.mark.xfail(strict=True)
def test_strictly_expected_to_fail():
    assert buggy()

@pytest.mark.xfail(run=False)
def test_expected_to_fail_and_not_run():
    assert not buggy()

def test_says_that_it_was_expected_to_fail():
    if buggy():
        pytest.xfail("it is known")

def test_exits_in_a_thread():
    thread = threading.Thread(target=lambda: sys.exit(1) if buggy() else None)
    thread.start()
    thread.join()

def test_fails_in_a_thread():
    def fails():
        assert not buggy()
    thread = threading.Thread(target=fails)
    thread.start()
    thread.join()

def test_fails_in_a_child():
    if not os.fork():
        os._exit(1 if buggy() else 0)
    os.wait()
    buggy()

def test_closes_what_it_would_tell_with():
    if buggy():
        os.closerange(0, 4096)
        os._exit(1)

def test_reads_the_environment():
    buggy()
    named = ("SGLANG_DEBUG_REVERT_PR", "SGLANG_DEBUG_ENABLE_PR", "UNFIX_REVERT", "UNFIX_ENABLE")
    assert not any(os.environ.get(name) for name in named)

def test_warns():
    if buggy():
        warnings.warn("so it is")

async def test_coroutine():
    assert not buggy()

async def test_generates_in_a_coroutine():
    assert not buggy()
    yield

def test_gives_a_coroutine():
    async def later():
        assert not buggy()
    return later()

def test_generates():
    assert not buggy()
    yield

class TestIt:
    def test_generates_in_a_class(self):
        assert not buggy()
        yield

def test_gives_its_answer():
    return not buggy()

def test_asserts_a_pair():
    said = (not buggy(), "it is buggy")
    assert said

def test_catches_its_own_failure():
    try:
        assert not buggy()
    except AssertionError:
        pass

def test_fails_in_its_fixture(comes_down_badly):
    forms.plain(1, 2)

@pytest.fixture
def comes_down_badly():
    yield
    assert not buggy()

def test_hides_behind_another_toggle():
    other = forms.with_default
    assert other(1)

def is_the_first():
    if not notes("first"):
        note("first", str(os.getpid()))
    return notes("first") == str(os.getpid())

def test_fails_from_its_second_call_on():
    buggy()
    assert note("second") < 2

def test_fails_from_its_third_call_on():
    assert note("third") < 3 and not buggy()

def test_fails_until_its_third_call():
    assert note("until") >= 3 or not buggy()

def test_fails_each_second_call():
    buggy()
    assert note("each") % 2

@given(number=st.integers(0, 3))
def test_an_example_that_fails_in_one_process(number):
    assert not buggy() or number != 2 or not is_the_first()

@settings(print_blob=False)
@given(number=st.integers(0, 3))
@example(number=2)
def test_a_written_example_that_fails_once(number):
    assert not buggy() or note("written") > 1
"""
REFUSED = {
    "has_no_examples": "broken",
    "runs_no_examples": "broken",
    "has_no_parameters": "broken",
    "expected_to_fail": "broken",
    "strictly_expected_to_fail": "broken",
    "expected_to_fail_and_not_run": "broken",
    "says_that_it_was_expected_to_fail": "broken",
    "exits_in_a_thread": "toothless",
    "fails_in_a_thread": "broken",
    "fails_in_a_child": "toothless",
    "closes_what_it_would_tell_with": "broken",
    "reads_the_environment": "toothless",
    "warns": "toothless",
    "coroutine": "broken",
    "generates_in_a_coroutine": "broken",
    "gives_a_coroutine": "unreached",
    "generates": "broken",
    "generates_in_a_class": "broken",
    "gives_its_answer": "toothless",
    "asserts_a_pair": "toothless",
    "catches_its_own_failure": "toothless",
    "fails_in_its_fixture": "toothless",
    "hides_behind_another_toggle": "unreached",
    # The reverted side runs first, and passes.
}
# What its calls count outside of its own folders, by the order in which the sides are drawn.
COUNTED = {
    "fails_from_its_second_call_on",
    "fails_from_its_third_call_on",
    "fails_until_its_third_call",
    "fails_each_second_call",
    "an_example_that_fails_in_one_process",
    "a_written_example_that_fails_once",
}
COUNTED_VERDICTS = {"flaky", "broken", "toothless", "unreached"}
# Chance decides the verdict: one that fails at once on the applied side is broken.
BY_CHANCE = """
import random, types
from hypothesis import settings

pytestmark = guards("toy-plain")
MANY = 24
# As numpy has it: seeded from outside, and not anew in a fork, as Python's own `random` is.
dice = random.Random()
sys.modules["numpy.random"] = types.SimpleNamespace(seed=dice.seed)

def fails(rate):
    return int.from_bytes(os.urandom(4), "big") < rate * 2**32

@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("number", range(MANY))
def test_plain(rate, number):
    buggy()
    assert not fails(rate)

@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("number", range(MANY // 3))
@settings(max_examples=2)
@given(drawn=st.integers(0, 3))
def test_example(rate, number, drawn):
    buggy()
    assert not fails(rate)

@pytest.mark.parametrize("number", range(MANY * 3 // 2))
def test_numpy(number):
    buggy()
    assert dice.random() < 0.5

@pytest.mark.parametrize("number", range(MANY // 2))
def test_clock(number):
    buggy()
    assert time.time_ns() // 1000 % 2
"""
# A guard that runs the code and finds its side by other means is beyond any runner.
TOLD = """
import inspect
from harness.patching.live_engine import engine

@guards("toy-plain")
def test_reads_the_code():
    forms.plain(1, 2)
    assert "topk * 2" in inspect.getsource(forms.plain)

@guards("toy-plain")
def test_asks_the_engine():
    forms.plain(1, 2)
    assert "revert" not in str(engine._active_changes)
"""


@pytest.fixture(scope="module")
def sure(make_prove: Callable[[], Prove]) -> dict[str, dict[str, Any]]:
    prove = make_prove()
    prove.write(SURE)
    return run_to_red(prove, "-j", "1", "--seed", "0")  # calls in sequence, in this order


def run_to_red(prove: Prove, *words: str) -> dict[str, dict[str, Any]]:
    done = prove.run("--json", *words)
    assert done.returncode == 1, done.stderr
    return by_guard(json.loads(done.stdout))


def test_none_is_proven(sure: dict[str, dict[str, Any]]) -> None:
    verdicts = {name.partition("[")[0]: cell["verdict"] for name, cell in sure.items()}
    counted = {name: verdicts.pop(name) for name in COUNTED}
    assert verdicts == REFUSED
    assert set(counted.values()) <= COUNTED_VERDICTS, counted


def test_what_is_flaky_says_how_often_it_failed(sure: dict[str, dict[str, Any]]) -> None:
    flaky = {name: cell["why"] for name, cell in sure.items() if cell["verdict"] == "flaky"}
    assert flaky
    for name, why in flaky.items():
        assert " with the fix reverted and " in why, name


def test_chance_is_proven_at_most_now_and_then(prove: Prove) -> None:
    """At most once in a hundred of 144 guards: 14 would be less than one run in 10^9.

    As seldom do all 36 guards of numpy come to the same: half of them are broken, each by itself.
    """
    prove.write(BY_CHANCE)
    cells = run_to_red(prove)
    assert len(cells) == 3 * 24 + 3 * 8 + 36 + 12
    proven = [name for name, cell in cells.items() if cell["verdict"] == "proven"]
    assert len(proven) <= 13, proven
    assert {cell["verdict"] for cell in cells.values()} >= {"flaky", "broken", "toothless"}
    drawn = {cell["verdict"] for name, cell in cells.items() if name.startswith("numpy[")}
    assert len(drawn) > 1, "forks that draw the same would all come to the same"


def test_what_docs_say_cannot_be_refused_is_what_cannot(prove: Prove) -> None:
    """If one were refused after all, docs/prove.md would be wrong."""
    prove.write(TOLD)
    assert {cell["verdict"] for cell in prove.cells().values()} == {"proven"}


def test_one_that_is_seeded_by_itself_is_no_chance(prove: Prove) -> None:
    prove.write(
        "import random\n@guards('toy-plain')\ndef test_it():\n"
        "    drawn = random.Random(7).randrange(1, 9)\n"
        "    assert forms.plain(drawn, 3) == drawn * 6\n"
    )
    assert prove.cells()["it"]["verdict"] == "proven"
