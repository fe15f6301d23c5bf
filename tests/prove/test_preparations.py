"""A guard's preparation is made once for many runs, and no other guard sees it."""

from __future__ import annotations

from proving import Prove

PREPARED = """
ready = []

def prepare(*names):
    if not ready:
        note("once")
    ready.extend(names)

@pytest.mark.prepared(by=prepare, names=("pool",))
@guards("toy-plain")
def test_with():
    note("ran")
    assert set(ready) == {"pool"}
    assert not buggy()
"""
UNPREPARED = """
@guards("toy-plain")
def test_{}():
    if ready:
        raise RuntimeError("it runs where another guard was prepared")
    assert not buggy()
"""


def test_a_supervisor_prepares_once_and_no_guard_without_a_preparation_runs_there(
    prove: Prove,
) -> None:
    # One lane takes them in an order of its own; one of both runs behind the prepared guard.
    prove.write("ready = []" + UNPREPARED.format("first") + PREPARED + UNPREPARED.format("last"))
    cells = prove.cells("-j", "1")
    assert {name: cell["verdict"] for name, cell in cells.items()} == dict.fromkeys(
        ("first", "with", "last"), "proven"
    )
    assert len((prove.shared / "ran").read_text()) > 1
    assert len((prove.shared / "once").read_text()) == 1


def test_a_preparation_that_says_not_applicable_is_no_failure(prove: Prove) -> None:
    prove.write(
        "@pytest.mark.prepared(by=skip_not_applicable, names=('no toolkit',))\n"
        "@guards('toy-plain')\ndef test_with():\n    assert not buggy()\n"
    )
    cell = prove.cells()["with"]
    assert (cell["verdict"], cell["why"]) == ("n/a", "no toolkit")


HALF_PREPARED = """
halves = []

def prepare(name):
    if name == "bad":
        halves.append(name)
        raise OSError("no compiler")
"""
OF_ONE_KIND = """
@pytest.mark.prepared(by=prepare, names=({0!r},))
@guards("toy-plain")
def test_{1}():
    if halves:
        raise RuntimeError("it runs where another preparation failed halfway")
    assert not buggy()
"""


def test_no_other_guard_runs_where_a_preparation_failed_halfway(prove: Prove) -> None:
    tests = (("good", "first"), ("bad", "with"), ("good", "last"))
    prove.write(HALF_PREPARED + "".join(OF_ONE_KIND.format(*names) for names in tests))
    cells = prove.cells("-j", "1")
    verdicts = {name: cell["verdict"] for name, cell in cells.items()}
    assert verdicts == {"first": "proven", "with": "broken", "last": "proven"}
    assert "no compiler" in cells["with"]["why"]


def test_a_test_that_a_marker_leaves_out_is_not_prepared(prove: Prove) -> None:
    marks = ("skip(reason='later')", "skipif('True', reason='here')", "xfail(run=False)")
    prove.write(
        PREPARED.partition("@pytest")[0]
        + "".join(
            f"@pytest.mark.{mark}\n@pytest.mark.prepared(by=prepare, names=('pool',))\n"
            f"@guards('toy-plain')\ndef test_number_{number}():\n    assert not buggy()\n"
            for number, mark in enumerate(marks)
        )
    )
    assert len(prove.cells()) == len(marks)
    assert not (prove.shared / "once").read_text()
