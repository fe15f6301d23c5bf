"""Guards with Hypothesis whose failures, or whose examples, have nothing to do with the bug."""

import os
import random
import time

import hypothesis
import pytest
from hypothesis import Phase, assume, example, given, reject, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase
from sglang import forms

pytestmark = pytest.mark.guards("toy-plain")
MANY = range(4)
RARE = st.integers(0, 380)  # the first 40 examples do not hold 307, the first 400 do


def is_right():
    return forms.plain(1, 2) == 4


def fails_half_of_the_time():
    return os.urandom(1)[0] < 128


@given(n=RARE)
def test_found_by_the_longer_search(n):
    is_right()
    assert n != 307


@given(data=st.data())
def test_draws_otherwise_when_fixed(data):
    if is_right():
        data.draw(st.binary(min_size=3))
    assert data.draw(RARE) != 307


@given(data=st.data())
def test_draws_more_when_fixed(data):
    number = data.draw(RARE)
    if is_right():
        data.draw(st.floats())
    assert number != 307


@given(n=RARE)
def test_rejects_its_example_when_fixed(n):
    assume(n != 307 or not is_right())
    is_right()
    assert n != 307


@pytest.mark.parametrize("number", MANY)
@given(data=st.data())
@settings(max_examples=1)
def test_draws_otherwise_and_fails_by_chance(data, number):
    if is_right():
        data.draw(st.binary(min_size=3))
    data.draw(st.integers())
    assert draws_of(number).random() < 0.5


def draws_of(number):
    return random.Random(f"{number} {time.time_ns()}")


@given(n=st.integers())
def test_rejects_all_when_fixed(n):
    if is_right():
        reject()
    raise AssertionError("always")


@given(n=st.nothing())
def test_has_no_examples(n):
    assert is_right()


@settings(phases=())
@given(n=st.integers())
def test_runs_no_examples(n):
    assert is_right()


@given(n=st.integers(0, 9))
def test_reads_its_settings(n):
    is_right()
    own = test_reads_its_settings._hypothesis_internal_use_settings
    assert own.max_examples < 100


@given(n=st.integers(0, 9))
def test_changes_its_settings(n):
    is_right()
    settings.register_profile("other", max_examples=10_000, database=None, print_blob=False)
    settings.load_profile("other")
    hypothesis.core.global_force_seed = n


@hypothesis.seed(11)
@settings(derandomize=False, max_examples=400, phases=[Phase.generate])
@given(n=st.integers(0, 10**6))
def test_has_a_seed_of_its_own(n):
    is_right()
    assert n % 4000 != 307


@settings(database=DirectoryBasedExampleDatabase(os.path.expanduser("~/.examples")))
@given(n=RARE)
def test_has_a_database(n):
    is_right()
    assert n != 307


calls = []


@given(n=st.integers())
def test_fails_at_its_hundredth_call(n):
    is_right()
    calls.append(n)
    assert len(calls) < 100


@given(n=st.integers())
def test_dies_at_its_hundredth_call(n):
    is_right()
    calls.append(n)
    if len(calls) >= 100:
        os.abort()


@given(n=st.integers())
def test_raises_what_says_that_nothing_ran(n):
    is_right()
    raise hypothesis.errors.DidNotReproduce("nothing ran")


@given(n=st.integers(0, 9))
def test_says_that_nothing_ran_half_of_the_time(n):
    is_right()
    if fails_half_of_the_time():
        raise hypothesis.errors.DidNotReproduce("nothing ran")
    raise AssertionError("always")


@settings(print_blob=False)
@given(n=st.integers(0, 3))
@example(n=2)
def test_written_example_fails_by_its_process(n):
    is_right()
    assert n != 2 or os.getpid() % 64 == 1


@example(n=307)
@given(n=RARE)
def test_rejects_its_written_example_when_fixed(n):
    assume(n != 307 or not is_right())
    assert n != 307


@given(data=st.data())
def test_ends_before_its_draws_when_fixed(data):
    if not is_right():
        assert data.draw(RARE) < 0


@given(data=st.data())
def test_catches_what_ends_its_draws(data):
    low = 400_000 if is_right() else 10
    try:
        number = data.draw(st.integers(low, 10 * low))
    except BaseException:
        return
    assert number > 300
