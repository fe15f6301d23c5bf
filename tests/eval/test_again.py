"""What was served once, judged anew: the record says what the run said, and nothing else does."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from faked import Fakes, fake

from harness.cli import main, pages
from harness.errors import UnfixError
from harness.eval import again, comparing
from harness.eval.matrix import Matrix
from harness.store.eval.values import Answer, Evaluation, Judged, Served


def answered(name: str, right: list[bool], text: str = "x") -> Served:
    answers = [
        Answer("recall", number, "?", "x", text if one else "y", one)
        for number, one in enumerate(right)
    ]
    return Served(name, "llama", "current", [], "cpu", answers=answers)


def kept(evaluation: Evaluation, file: Path) -> Path:
    from harness.cli.kinds import EVAL

    text = json.dumps(EVAL.data(evaluation)).encode()
    file.write_bytes(gzip.compress(text) if file.suffix == ".gz" else text)
    return file


@pytest.mark.parametrize("name", ["record.json", "record.json.gz"])
def test_a_record_is_judged_as_the_run_was(fakes: Fakes, tmp_path: Path, name: str) -> None:
    one, other = fake("base"), fake("worse", "base", wrong=[4, 1])
    ran = fakes.run(one, other, items=200)
    matrix = Matrix("fake", [one, other], tasks=["recall"], items=200, device="cpu")
    recorded = again.read(kept(ran, tmp_path / name))
    recorded.compared = []
    said = again.Again(matrix, fakes.where(), recorded).go()
    assert [(c.verdict, c.lost, c.items) for c in said.compared] == [
        (c.verdict, c.lost, c.items) for c in ran.compared
    ]
    assert said.compared[0].verdict is Judged.REGRESSED


def test_answers_that_were_changed_are_judged_as_they_are(fakes: Fakes, tmp_path: Path) -> None:
    one, other = fake("base"), fake("worse", "base", wrong=[4, 1])
    recorded = again.read(kept(fakes.run(one, other, items=200), tmp_path / "r.json"))
    for answer in recorded.one("worse").answers:
        answer.right = True
    matrix = Matrix("fake", [one, other], tasks=["recall"], items=200, device="cpu")
    [found] = again.Again(matrix, fakes.where(), recorded).go().compared
    assert (found.verdict is Judged.REGRESSED, found.lost) == (False, 0)


@pytest.mark.parametrize("answered_something", [False, True])
def test_what_the_file_calls_absent_since_is_a_row_with_its_reason(
    fakes: Fakes, tmp_path: Path, answered_something: bool
) -> None:
    one, other = fake("base"), fake("worse", "base")
    recorded = again.read(kept(fakes.run(one, other, items=2), tmp_path / "r.json"))
    recorded.one("worse").failure = "the server ended before it was ready"
    if not answered_something:
        recorded.one("worse").answers = []
    other.absent = "this card has no such kernel"
    matrix = Matrix("fake", [one, other], tasks=["recall"], items=2, device="cpu")
    said = again.Again(matrix, fakes.where(), recorded).go()
    worse = said.one("worse")
    assert worse.absent == ("" if answered_something else other.absent)
    assert bool(worse.problems) is answered_something
    assert [one.verdict for one in said.compared] == [
        Judged.FAILED if answered_something else Judged.NA
    ]


def test_a_record_of_another_matrix_is_refused(fakes: Fakes, tmp_path: Path) -> None:
    recorded = again.read(kept(fakes.run(fake("base"), items=2), tmp_path / "r.json"))
    with pytest.raises(UnfixError, match=r"the record has no other: was it of this matrix\?"):
        again.Again(Matrix("fake", [fake("other")]), fakes.where(), recorded)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("absent.json", None),
        ("text.json", b"no JSON"),
        ("other.json", b'{"runs": []}'),
        ("list.json", b"[]"),
        ("short.json.gz", gzip.compress(b'{"a": 1}', mtime=0)[:-9]),
        ("plain.json.gz", b'{"a": 1}'),
    ],
)
def test_what_is_no_record_is_refused_by_its_name(
    tmp_path: Path, name: str, data: bytes | None
) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(UnfixError, match=name):
        again.read(tmp_path / name)


def test_the_recorded_results_of_the_tree_are_green_by_todays_statistics(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name, words in (
        ("h200", "61 same, 18 equal, 2 of 2 faults caught"),
        ("h200-deepseek-v4", "2 near-tie, 0 of 0 faults caught"),
    ):
        record = f"bench/recorded/eval-{name}.json.gz"
        page = str(tmp_path / "page.html")
        assert main.main(["eval", name, "--judge-again", record, "--html", page]) == 0
        assert words in capsys.readouterr().out


def test_neither_knows_anything_so_nothing_can_be_lost() -> None:
    base, candidate = answered("base", [False] * 9), answered("candidate", [False] * 9)
    told = comparing.accuracy(base, candidate, "recall", cells=1, tolerance=0.05)
    assert told.verdict is Judged.NA
    assert told.words == "n/a: neither answers any of 9 items rightly, so none can be lost"
    candidate.answers[3].right = True
    told = comparing.accuracy(base, candidate, "recall", cells=1, tolerance=0.05)
    assert (told.verdict, told.gained) == (Judged.CANNOT_TELL, 1)


def test_an_error_is_not_what_is_known_to_be_wrong() -> None:
    base, candidate = answered("base", [False] * 9), answered("candidate", [False] * 9)
    candidate.answers[3].right, candidate.answers[3].error = None, "500"
    told = comparing.accuracy(base, candidate, "recall", cells=1, tolerance=0.05)
    assert (told.verdict, told.errors) == (Judged.CANNOT_TELL, 1)


def test_a_recorded_command_names_no_file_that_it_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["eval", "cpu", "--record", "r.json", "--html=p.html", "-j", "2", "--markdown", "m"]
    assert pages.asked(words) == ["eval", "cpu", "-j", "2"]
    assert pages.asked(["eval", "--record"]) == ["eval"]
    monkeypatch.setattr("sys.argv", ["unfix", *words])
    assert pages.command() == ["unfix", "eval", "cpu", "-j", "2"]
    theirs = ["--", "pytest", "--junit", "x.xml"]
    assert pages.asked(["exec", "--record", "r.json", *theirs]) == ["exec", *theirs]
