"""A regression runs with its suite from then on, and is never left out silently."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from nights import Nights

SUITE = """
@given(number=st.integers(0, 100_000), kind=st.sampled_from(["a", "b"]))
def test_small(number, kind):
    assert number != 4711 or not os.environ.get("BROKEN")

@given(number=st.integers(0, 100_000), data=st.data())
def test_draws(number, data):
    drawn = data.draw(st.integers(0, 100_000))
    assert number + drawn != 4711 or not os.environ.get("BROKEN")
"""
BLOBS = {"small": (4711, 1), "draws": (11, 4700)}
ARGUMENTS = {"small": ["number=4711", "kind='b'"], "draws": ["number=11", "data=data(...)"]}


def write_failure(nights: Nights, name: str, **changed: Any) -> Path:
    """Return a failure in the form in which a run writes it."""
    from hypothesis.core import encode_failure

    file = nights.root / ".unfix" / "fuzz" / "failures" / f"{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    made = {
        "format": 1,
        "test": f"{nights.suite}/test_toy.py::test_{name}",
        "error": "AssertionError",
        "where": "test_toy.py:test_small: assert number != 4711",
        "kind": "",
        "headline": "assert 4711 != 4711",
        "release": "1.0.0",
        "under": [],
        "blob": encode_failure(BLOBS.get(name, ())).decode(),
        "arguments": ARGUMENTS.get(name, []),
        "date": "2026-01-01T00:00:00+00:00",
        "versions": {},
        "seed": 0,
        "shrunk": True,
        "examples": 7,
        "detail": "",
    }
    file.write_text(json.dumps({**made, **changed}))
    return file


@pytest.fixture
def place(nights: Nights) -> Nights:
    nights.write(SUITE)
    return nights


def keep_failure(place: Nights, name: str = "small") -> Path:
    done = place.run("--keep", str(write_failure(place, name)), "--json")
    assert done.returncode == 0, done.stderr
    return Path(json.loads(done.stdout)["kept"])


@pytest.mark.parametrize("name", ["small", "draws"])
def test_a_regression_runs_first_in_every_run_of_its_suite(
    place: Nights, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    file = keep_failure(place, name)
    assert file.parent == place.suite / "regressions"
    assert place.pytest().returncode == 0
    monkeypatch.setenv("BROKEN", "1")
    done = place.pytest()
    assert done.returncode == 1
    assert f"the regression kept in {file.name}" in done.stdout
    assert "1 failed, 1 passed" in done.stdout


def test_without_it_the_same_run_is_green(place: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKEN", "1")
    assert place.pytest("--hypothesis-seed=0").returncode == 0


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("number=st.integers(0, 100_000), kind", "number=st.integers(0, 1000), kind"),
        ("number=st.integers(0, 100_000), kind", "other=st.text(), number=st.integers(), kind"),
        ('["a", "b"]', '["b", "a"]'),
        ('kind=st.sampled_from(["a", "b"])', 'kind=st.just("b"), flag=st.binary(min_size=9)'),
    ],
)
def test_an_example_that_no_longer_decodes_is_an_error_with_words(
    place: Nights, before: str, after: str
) -> None:
    file = keep_failure(place)
    changed = SUITE.replace(before, after)
    assert changed != SUITE
    names = [name for name in ("other", "flag") if f"{name}=" in after]
    for name in names:
        changed = changed.replace("(number, kind)", f"(number, kind, {name})")
    place.write(changed)
    done = place.pytest("-k", "small")
    assert done.returncode == 1
    assert f"{file.name}: the example of" in done.stdout
    assert "no longer decodes: the strategy has changed" in done.stdout
    assert "It was number=4711, kind='b'" in done.stdout


@pytest.mark.parametrize(
    ("suite", "regression", "code", "message"),
    [
        (SUITE.replace("test_small", "test_other"), None, 4,
         "test_small is gone: test_toy.py has test_other, test_draws"),
        (SUITE, "{}", 4, "is no failure that `unfix fuzz` wrote"),
        ("def test_small():\n    pass\n", None, 1, "draws no examples any longer"),
    ],
)  # fmt: skip
def test_a_regression_that_cannot_be_run_is_an_error(
    place: Nights, suite: str, regression: str | None, code: int, message: str
) -> None:
    file = keep_failure(place)
    if regression is not None:
        file.write_text(regression)
    place.write(suite)
    done = place.pytest()
    assert done.returncode == code
    assert message in done.stdout + done.stderr


def test_the_same_failure_is_not_kept_twice(place: Nights) -> None:
    file = keep_failure(place)
    done = place.run("--keep", str(write_failure(place, "small")))
    assert done.returncode == 2
    assert f"{file} is there already" in done.stderr


def test_a_replay_says_that_it_passes_and_that_it_fails(
    place: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--replay", str(write_failure(place, "small")), "--release", "current"]
    done = place.run(*words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("passes on SGLang 1.0.0")
    monkeypatch.setenv("BROKEN", "1")
    done = place.run(*words)
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("fails on SGLang 1.0.0")
    assert "number=4711" in done.stdout


def test_a_replay_of_what_no_longer_decodes_is_refused(place: Nights) -> None:
    file = write_failure(place, "small", arguments=["number=4712", "kind='b'"])
    done = place.run("--replay", str(file), "--release", "current")
    assert done.returncode == 2
    assert "no longer decodes" in done.stderr
    assert "is now number=4711, kind='b'" in done.stderr


@pytest.mark.parametrize("option", ["--replay", "--keep"])
@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"format": 2}, "is of format 2, and this unfix reads format 1"),
        ({"blob": 3}, "is no failure that `unfix fuzz` wrote: Expected `str`, got `int`"),
        ({"more": 1}, "unknown field `more`"),
        ({"test": "suites/nowhere/test_x.py::test_y"}, "is gone: there is no file"),
    ],
)
def test_a_file_of_another_format_or_of_a_test_that_is_gone_is_refused(
    place: Nights, option: str, changed: dict[str, Any], says: str
) -> None:
    file = write_failure(place, "small", **changed)
    done = place.run(option, str(file), *(["--release", "current"] * (option == "--replay")))
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.startswith("unfix: ")
    assert "Traceback" not in done.stderr
