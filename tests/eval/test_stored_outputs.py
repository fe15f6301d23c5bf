"""Stored outputs judged again: the result is the run's, and depends on the record alone."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import msgspec
import pytest
from faked import Fakes, SharedLmEval, make_fake
from fixture_types import Output, Patch

from harness.cli import main, run_output
from harness.core.errors import UnfixError
from harness.core.outcomes import Verdict
from harness.matrices.schema import EvaluationConfiguration, MatrixFile
from harness.runs.eval.evaluation_comparer import read_recorded_evaluation, rejudge_recorded
from harness.store.eval.values import Evaluation
from harness.store.record_files import write_record


def write_json(evaluation: Evaluation, file: Path) -> Path:
    from harness.cli.commands import KINDS

    text = json.dumps(KINDS["eval"].to_json(evaluation))
    write_record(file, text)
    return file


CONFIGURATIONS = (make_fake("base"), make_fake("worse", "base", wrong=[4, 1]))


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory, lm_eval: SharedLmEval) -> Evaluation:
    return Fakes(tmp_path_factory.mktemp("fakes"), lm_eval).run(*CONFIGURATIONS, items=200)


def make_matrix(*configurations: EvaluationConfiguration) -> MatrixFile:
    return MatrixFile("fake", list(configurations), tasks=["recall"], items=200, device="cpu")


@pytest.mark.parametrize("name", ["record.json", "record.json.xz"])
def test_a_record_is_judged_as_the_run_was(
    finished_run: Evaluation, tmp_path: Path, name: str
) -> None:
    matrix = make_matrix(*CONFIGURATIONS)
    recorded = read_recorded_evaluation(write_json(finished_run, tmp_path / name))
    recorded.compared = []
    judged = rejudge_recorded(matrix, recorded)
    first, second = (
        [(one.verdict, one.lost, one.items) for one in run.compared]
        for run in (judged, finished_run)
    )
    assert first == second
    assert judged.compared[0].verdict is Verdict.REGRESSED
    for answer in recorded.find_configuration("worse").answers:  # as the current code has them
        answer.right = True
    [found] = rejudge_recorded(matrix, recorded).compared
    assert (found.verdict is Verdict.REGRESSED, found.lost) == (False, 0)


@pytest.mark.parametrize("has_answers", [False, True])
def test_an_absent_configuration_keeps_its_reason(
    finished_run: Evaluation, tmp_path: Path, has_answers: bool
) -> None:
    base, other = CONFIGURATIONS
    recorded = read_recorded_evaluation(write_json(finished_run, tmp_path / "r.json"))
    recorded.find_configuration("worse").failure = "the server ended before it was ready"
    if not has_answers:
        recorded.find_configuration("worse").answers = []
    absent = msgspec.structs.replace(other, absent="this card has no such kernel")
    judged = rejudge_recorded(make_matrix(base, absent), recorded)
    worse = judged.find_configuration("worse")
    assert worse.absent == ("" if has_answers else absent.absent)
    assert bool(worse.problems) is has_answers
    expected = Verdict.FAILS if has_answers else Verdict.NA
    assert [one.verdict for one in judged.compared] == [expected]


def test_a_record_of_another_matrix_is_refused(finished_run: Evaluation, tmp_path: Path) -> None:
    recorded = read_recorded_evaluation(write_json(finished_run, tmp_path / "r.json"))
    with pytest.raises(UnfixError, match=r"the record has no other: was it of this matrix\?"):
        rejudge_recorded(make_matrix(make_fake("other")), recorded)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("absent.json", None),
        ("text.json", b"no JSON"),
        ("other.json", b'{"runs": []}'),
        ("list.json", b"[]"),
        ("short.json.xz", lzma.compress(b'{"a": 1}')[:-9]),
        ("plain.json.xz", b'{"a": 1}'),
    ],
)
def test_an_invalid_record_is_refused(tmp_path: Path, name: str, data: bytes | None) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(UnfixError, match=name):
        read_recorded_evaluation(tmp_path / name)


def test_recorded_results_are_judged_again_by_todays_standard(
    capsys: Output, tmp_path: Path
) -> None:
    """What was recorded before faults were repeated says of them less than is required."""
    for name, code, words in (
        ("h200", 1, "61 same, 18 equal, 0 of 2 faults caught"),
        ("h200-deepseek-v4", 0, "2 near-tie, 0 of 0 faults caught"),
    ):
        record = f"bench/recorded/eval-{name}.json.xz"
        page = str(tmp_path / "page.html")
        assert main.main(["eval", name, "--judge-again", record, "--html", page]) == code
        assert words in capsys.readouterr().out


def test_a_recorded_command_names_no_file_that_it_wrote(monkeypatch: Patch) -> None:
    words = ["eval", "cpu", "--record", "r.json", "--html=p.html", "-j", "2", "--markdown", "m"]
    assert run_output.strip_output_options(words) == ["eval", "cpu", "-j", "2"]
    assert run_output.strip_output_options(["eval", "--record"]) == ["eval"]
    monkeypatch.setattr("sys.argv", ["unfix", *words])
    assert run_output.get_recorded_command() == ["unfix", "eval", "cpu", "-j", "2"]
    command_words = ["--", "pytest", "--junit", "x.xml"]
    call = ["exec", "--record", "r.json", *command_words]
    assert run_output.strip_output_options(call) == ["exec", *command_words]
