"""How often a guard that does not notice its bug is called proven.

    .venv/bin/python -m bench.run false_proofs [--rounds N] [-j N]

Each try is a cell of `unfix prove` over a small release: a guard that runs the toggled code and
then fails at a rate that has nothing to do with it. Its outcome comes from chance, from names that
it can read, from files that an earlier run left, from memory that all runs share, or from draws of
Hypothesis that differ between the sides. Every round starts `prove` anew, with another seed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.measuring import Result, run_unfix
from harness.core import paths

TOY = paths.project_folder() / "tests" / "toy"
RATES = (0.3, 0.5, 4 / 7, 0.7, 0.9)  # chance is proven most often at 4/7
GUARDS = '''
import mmap, os, random, tempfile, time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang import forms

pytestmark = [
    pytest.mark.guards("toy-plain"),
    pytest.mark.parametrize("rate", RATES),
    pytest.mark.parametrize("number", range(2)),
]
shared = mmap.mmap(-1, 1 << 16)


def is_right():
    return forms.plain(1, 2) == 4


def draw(*words):
    return random.Random(repr(words)).random()


def count_calls(folder, *words):
    """Count the calls by the length of a file."""
    name = "-".join(map(str, ("unfix-false-proofs", ROUND, *words)))
    with open(os.path.join(folder, name), "a") as calls:
        calls.write("x")
        return calls.tell()


def count_in_shared_memory(place):
    shared[place] += 1
    return shared[place]


def test_chance_of_the_device(rate, number):
    is_right()
    assert int.from_bytes(os.urandom(4), "big") >= rate * 2**32


def test_chance_of_random(rate, number):
    is_right()
    assert random.random() >= rate


def test_chance_of_the_clock(rate, number):
    is_right()
    assert draw(time.time_ns()) >= rate


def test_chance_of_its_process(rate, number):
    is_right()
    assert draw(os.getpid(), number) >= rate


def test_chance_of_an_address(rate, number):
    is_right()
    assert draw(id(Path("x")), number) >= rate


def test_name_of_its_node(rate, number, request):
    is_right()
    assert draw(ROUND, request.node.nodeid) >= rate


def test_name_in_the_environment(rate, number):
    is_right()
    assert draw(ROUND, os.environ["PYTEST_CURRENT_TEST"]) >= rate


def test_name_of_all_variables(rate, number):
    is_right()
    assert draw(ROUND, number, sorted(os.environ.items())) >= rate


def test_name_of_its_folders(rate, number, tmp_path):
    is_right()
    assert draw(ROUND, number, str(tmp_path), os.getcwd(), tempfile.gettempdir()) >= rate


FOLDERS = {
    "home": lambda: os.path.expanduser("~"),
    "temporary": tempfile.gettempdir,
    "working": os.getcwd,
    "tmp": lambda: "/tmp",
    "shm": lambda: "/dev/shm",
    "own": lambda: os.path.dirname(__file__),
}


@pytest.mark.parametrize("folder", FOLDERS)
def test_file_that_counts(rate, number, folder):
    is_right()
    calls = count_calls(FOLDERS[folder](), folder, rate, number)
    assert draw(ROUND, folder, number, calls) >= rate


@pytest.mark.parametrize("folder", FOLDERS)
def test_file_of_each_second_run(rate, number, folder):
    is_right()
    assert (count_calls(FOLDERS[folder](), "second", folder, rate, number) + number) % 2


def test_memory_that_counts(rate, number):
    is_right()
    calls = count_in_shared_memory(2 * RATES.index(rate) + number)
    assert draw(ROUND, number, calls) >= rate


def test_memory_of_each_second_run(rate, number):
    is_right()
    assert (count_in_shared_memory(64 + 2 * RATES.index(rate) + number) + number) % 2


outcomes = {}


def fails_in_this_process(rate):
    """Fail in all calls of a process, or in none, since Hypothesis finds any other chance."""
    drawn = outcomes.setdefault(os.getpid(), int.from_bytes(os.urandom(4), "big"))
    return drawn < rate * 2**32


@settings(max_examples=5)
@given(n=st.integers())
def test_draw_of_the_same(rate, number, n):
    is_right()
    assert not fails_in_this_process(rate)


@settings(max_examples=5, print_blob=False)
@given(n=st.integers())
def test_draw_of_a_hidden_example(rate, number, n):
    is_right()
    assert not fails_in_this_process(rate)


@settings(max_examples=5)
@given(data=st.data())
def test_draw_of_another_kind(rate, number, data):
    data.draw(st.binary(min_size=3) if is_right() else st.integers())
    assert not fails_in_this_process(rate)


@settings(max_examples=5)
@given(data=st.data())
def test_draw_of_more(rate, number, data):
    data.draw(st.lists(st.integers(), min_size=3 if is_right() else 0))
    assert not fails_in_this_process(rate)
'''


def prove_guards(round_number: int, jobs: int, folder: Path) -> list[dict[str, Any]]:
    """Run `unfix prove` once over all guards; return its cells."""
    guards = folder / "guards"
    guards.mkdir(parents=True)
    head = f"ROUND, RATES = {str(folder)!r}.replace('/', '-'), {RATES!r}\n"
    (guards / "test_by_chance.py").write_text(head + GUARDS)
    home = folder / "home"
    home.mkdir()
    found_by = os.pathsep.join((str(paths.project_folder()), str(TOY)))
    environment = {
        **os.environ,
        "HOME": str(home),
        "PYTHONPATH": found_by,
        "UNFIX_HOME": str(folder),
    }
    words = ["prove", "--release", "current", "--toggles", str(TOY / "toggles"), "--json"]
    words += ["-j", str(jobs), "--", str(guards)]
    run = run_unfix(words, cwd=folder, env=environment)
    for place in ("/tmp", "/dev/shm"):
        for left in Path(place).glob(f"unfix-false-proofs-{str(folder).replace('/', '-')}*"):
            left.unlink()
    cells: list[dict[str, Any]] = run["cells"]
    print(f"round {round_number}: {len(cells)} tries", file=sys.stderr, flush=True)
    return cells


def summarize_cells(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Count the tries and the proofs, by the source of the outcomes."""
    tries: dict[str, Counter[str]] = defaultdict(Counter)
    for cell in cells:
        test = cell["guard"].partition("::test_")[2].partition("[")[0]
        tries[test][cell["verdict"]] += 1
    families: dict[str, Counter[str]] = defaultdict(Counter)
    for test, verdicts in tries.items():
        families[test.partition("_")[0]] += verdicts
    return {
        "tries": len(cells),
        "proven": sum(verdicts["proven"] for verdicts in tries.values()),
        "rates": list(RATES),
        "by kind": {name: count_proofs(verdicts) for name, verdicts in sorted(families.items())},
        "by guard": {name: count_proofs(verdicts) for name, verdicts in sorted(tries.items())},
    }


def count_proofs(verdicts: Counter[str]) -> dict[str, Any]:
    return {
        "tries": verdicts.total(),
        "proven": verdicts["proven"],
        "verdicts": dict(sorted(verdicts.items())),
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-j", "--jobs", type=int, default=2)


def measure_case(options: argparse.Namespace) -> Iterator[Result]:
    began = time.time()
    cells = []
    for number in range(1, options.rounds + 1):
        with tempfile.TemporaryDirectory(prefix="false-proofs-") as folder:
            cells += prove_guards(number, options.jobs, Path(folder))
    seconds = round(time.time() - began)
    result = {"rounds": options.rounds, "seconds": seconds, **summarize_cells(cells)}
    yield Result(result, result["proven"] <= 0.01 * result["tries"])
