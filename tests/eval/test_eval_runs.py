"""Results of whole runs over fake servers."""

from __future__ import annotations

from typing import Any

import pytest
from faked import TOY, Fakes, make_fake, with_share

from harness.core.errors import UnknownToggleError
from harness.core.outcomes import Verdict
from harness.matrices.schema import FaultPlacement
from harness.runs.eval import paired_statistics
from harness.store.eval.values import ComparisonResult, Evaluation
from reports.eval.view import make_view


def count_items(share: list[int], items: int) -> int:
    """Return the number of the first items to which a share applies."""
    return len(with_share(share, items))


def get_only_result(evaluation: Evaluation, kind: str = "accuracy") -> ComparisonResult:
    [found] = [one for one in evaluation.compared if one.kind == kind]
    return found


def test_a_regressed_candidate_gets_no_more_items(fakes: Fakes) -> None:
    record = fakes.root / "asked"
    wrong = [4, 1]
    worse = make_fake("worse", "base", wrong=wrong, record=str(record))
    evaluation = fakes.run(make_fake("base"), worse, items=200)
    found = get_only_result(evaluation)
    assert found.verdict is Verdict.REGRESSED
    assert found.items < 200
    assert found.items % paired_statistics.BATCH_ITEMS == 0
    assert len(record.read_text().splitlines()) == found.items
    assert (found.lost, found.gained, found.errors) == (count_items(wrong, found.items), 0, 0)
    assert [one.why for one in found.differences] == ["lost"] * found.lost
    assert evaluation.status == "finished"
    assert not evaluation.green
    [problem] = evaluation.problems
    assert "worse against base (unfix_recall): regressed" in problem


def test_an_equal_candidate_is_the_same_and_a_better_one_improved(fakes: Fakes) -> None:
    evaluation = fakes.run(make_fake("base"), make_fake("one", "base", like="base"), items=200)
    assert get_only_result(evaluation).verdict is Verdict.SAME
    assert get_only_result(evaluation, "tokens").verdict is Verdict.EQUAL
    assert evaluation.green, evaluation.problems
    one = evaluation.find_configuration("one")
    assert (one.accepted, one.how) == (2.5, "afresh")
    assert len(evaluation.find_configuration("base").again) >= 16  # its measured noise
    evaluation = fakes.run(make_fake("base", wrong=[2, 1]), make_fake("one", "base"), items=200)
    assert (get_only_result(evaluation).verdict, evaluation.green) == (Verdict.IMPROVED, True)


def test_an_undecided_pair_gets_items_up_to_the_limit(fakes: Fakes) -> None:
    evaluation = fakes.run(make_fake("base"), make_fake("one", "base"), items=20, limit=400)
    found = get_only_result(evaluation)
    assert (found.verdict, found.items) == (Verdict.SAME, 20 + paired_statistics.DEFAULT_ITEMS)
    assert [len(served.answers) for served in evaluation.served] == [220] * 2
    assert evaluation.green
    evaluation = fakes.run(make_fake("base"), make_fake("one", "base"), items=20, limit=40)
    assert (get_only_result(evaluation).verdict, get_only_result(evaluation).items) == (
        Verdict.CANNOT_TELL,
        40,
    )
    assert not evaluation.green


def test_errors_are_open_and_red(fakes: Fakes) -> None:
    share = [5, 1]
    evaluation = fakes.run(
        make_fake("base"), make_fake("one", "base", http=share), items=50, limit=50
    )
    found, served = get_only_result(evaluation), evaluation.find_configuration("one")
    errors = count_items(share, 50)
    assert (found.verdict, found.errors, found.lost) == (Verdict.CANNOT_TELL, errors, 0)
    assert sum(answer.right is None for answer in served.answers) == errors
    assert len(served.answers) == 50
    assert [one.why for one in found.differences] == ["error"] * errors
    counts = paired_statistics.PairedCounts(both_right=50 - errors, may_lose=errors)
    judged = paired_statistics.judge_pair(counts)
    assert (found.low, found.high) == (judged.low, judged.high)
    assert any(f"{errors} of its answers are errors, as HTTP 500" in x for x in evaluation.problems)


def test_a_server_without_any_answer_hangs(fakes: Fakes) -> None:
    fakes.request_timeout = 1.5
    hanging = (make_fake("all", "base", hang=[1, 1]), make_fake("some", "base", hang=[8, 1]))
    evaluation = fakes.run(make_fake("base"), *hanging, items=8)
    verdicts = {one.candidate: one.verdict for one in evaluation.compared}
    assert evaluation.find_configuration("all").failure.startswith("hang: ")
    assert evaluation.find_configuration("some").failure == ""
    assert verdicts == {"all": Verdict.HANG, "some": Verdict.CANNOT_TELL}
    assert not evaluation.green


def test_a_base_that_dies_leaves_the_rest_to_be_told(fakes: Fakes) -> None:
    dying, one = make_fake("base", dies_at=60), make_fake("one", "base", like="base")
    evaluation = fakes.run(dying, one, items=100, limit=400)
    base = evaluation.find_configuration("base")
    assert base.failure == "the server died: RuntimeError: no more (exit code 1)"
    assert len(base.answers) == 100
    assert 50 < sum(answer.right is True for answer in base.answers) < 60
    assert sum(answer.right is None for answer in base.answers) > 40
    assert len(evaluation.find_configuration("one").answers) == 100
    assert {one.verdict for one in evaluation.compared} == {Verdict.CANNOT_TELL}
    assert not evaluation.green


@pytest.mark.parametrize(
    ("be", "verdict", "words"),
    [
        ({"launches": 9}, Verdict.SAME, ""),
        ({"launches": 9, "reports": "scatter wrote 4 bytes past the end"}, Verdict.FAILS,
         "scatter wrote 4 bytes past the end (a.py:7, program (0, 1, 2))"),
        ({}, Verdict.FAILS, "no process launched a Triton kernel, so the check says nothing"),
    ],
)  # fmt: skip
def test_gpu_reports_fail_the_configuration(
    fakes: Fakes, be: dict[str, Any], verdict: Verdict, words: str
) -> None:
    fakes.device = "cuda"
    checked = make_fake("one", "base", **be)
    checked.stand_ins = ["checked"]
    evaluation = fakes.run(make_fake("base"), checked, device="cuda")
    served = evaluation.find_configuration("one")
    assert served.failure == words
    assert get_only_result(evaluation).verdict is verdict
    assert evaluation.green is (verdict is Verdict.SAME)
    launched = "9 launches of 1 kernel" if be else "0 launches of 0 kernels"
    assert served.stand_ins[-1].startswith(f"checked {launched}")
    assert not evaluation.find_configuration("base").stand_ins


def test_a_candidate_under_check_gets_all_of_its_items(fakes: Fakes) -> None:
    """The items go on even if its answers suffice: its launches are checked."""
    fakes.device = "cuda"
    checked = make_fake("worse", "base", wrong=[4, 1], launches=9)
    checked.stand_ins = ["checked"]
    found = get_only_result(fakes.run(make_fake("base"), checked, items=200, device="cuda"))
    assert (found.verdict, found.items) == (Verdict.REGRESSED, 200)


def test_servers_on_the_virtual_gpu_say_what_had_a_stand_in(fakes: Fakes) -> None:
    fakes.device = "virtual"
    for _ in range(2):  # the second one's servers have the folders of the first one's
        evaluation = fakes.run(make_fake("base"), device="virtual")
        assert evaluation.find_configuration("base").operators == {"toy.operator": 1}
        text = "1 operator of CUDA binaries had stand-ins, 1 call: toy.operator 1"
        assert make_view(evaluation).stand_ins == text


def test_a_run_without_answers_or_comparisons_is_red(fakes: Fakes) -> None:
    evaluation = fakes.run(
        make_fake("base", stillborn=True), make_fake("one", "base", stillborn=True)
    )
    assert evaluation.status == "finished"
    assert not any(served.answers for served in evaluation.served)
    assert "nothing was answered" in evaluation.problems
    assert all("ended before it was ready" in served.failure for served in evaluation.served)
    gone = make_fake("gone", "base")
    gone.absent = "needs a GPU"
    evaluation = fakes.run(make_fake("base"), gone)
    assert (get_only_result(evaluation).verdict, get_only_result(evaluation).words) == (
        Verdict.NA,
        "needs a GPU",
    )
    assert "nothing was compared" in evaluation.problems
    assert not (fakes.root / "servers" / "gone").exists()


def run_with_faults(fakes: Fakes, **be: Any) -> Evaluation:
    faults = [FaultPlacement(["one"], revert="toy-plain")]
    one = make_fake("one", like="base", without={"toy-plain": be})
    one.environment = {"PYTHONPATH": str(TOY)}
    return fakes.run(make_fake("base"), one, faults=faults, items=20)


WRONG: dict[str, Any] = {"wrong": [2, 1]}
ONCE: dict[str, Any] = {"dies_at": 5, "dies_once": "died"}
FAILED = "it failed {} of {} times with the bug and 0 of 3 times without it"


@pytest.mark.parametrize(
    ("be", "caught", "user_sees", "unconfirmed"),
    [
        ({"dies_at": 5}, True, "crash", ""),
        ({"stillborn": True}, True, "crash", ""),
        (WRONG, True, "wrong answers", ""),
        # A server that died once and answers wrongly when it is asked again has failed again.
        (WRONG | ONCE, True, "crash", ""),
        (ONCE, False, "crash", FAILED.format(1, 2)),
        # Twenty items are asked first; then what failed among them is repeated.
        (WRONG | {"wrong_between": [1, 20]}, False, "", FAILED.format(0, 4)),
        ({"dies_at": 5, "code": -9, "last": "CUDA out of memory"}, False, "crash", "lacked memory"),
        ({}, False, "nothing", ""),
        (WRONG | {"reach": False}, False, "never ran", ""),
    ],
)  # fmt: skip
def test_a_fault_is_caught_if_it_shows_again_and_is_red_if_not(
    fakes: Fakes, be: dict[str, Any], caught: bool, user_sees: str, unconfirmed: str
) -> None:
    if "dies_once" in be:
        be = be | {"dies_once": str(fakes.root / "died")}
    evaluation = run_with_faults(fakes, **be)
    [fault] = evaluation.faults
    assert (fault.caught, evaluation.green) == (caught, caught), evaluation.problems
    assert user_sees in fault.user_sees
    assert unconfirmed in fault.unconfirmed
    assert bool(fault.unconfirmed) is bool(unconfirmed)
    assert evaluation.missed_faults == ([] if caught else [fault])
    if "stillborn" not in be:
        assert fault.reach == be.get("reach", 1)
    assert evaluation.find_configuration("one without toy-plain").revert == ["toy-plain"]
    noted = [f"toy-plain in one was not noticed{': ' * bool(unconfirmed)}{fault.unconfirmed}"]
    assert evaluation.problems == ([] if caught else noted)


def test_a_failure_that_shows_without_the_fault_as_well_does_not_catch_it(fakes: Fakes) -> None:
    """The configuration without it is right at first, and wrong when it is asked again."""
    faults = [FaultPlacement(["one"], revert="toy-plain")]
    one = make_fake("one", like="base", wrong=[2, 1], wrong_between=[28, 1000])
    words = '{"toy-plain": {"wrong_between": [1, 1000]}}'
    one.serve = one.serve.replace('{"wrong"', f'{{"without": {words}, "wrong"')
    one.environment = {"PYTHONPATH": str(TOY)}
    evaluation = fakes.run(make_fake("base"), one, faults=faults, items=20)
    [fault] = evaluation.faults
    assert not fault.caught
    assert fault.unconfirmed == ("it failed 4 of 4 times with the bug and 3 of 3 times without it")


def test_a_pair_that_is_right_about_nothing_has_no_verdict(fakes: Fakes) -> None:
    wrong: Any = {"wrong": [1, 1]}
    evaluation = fakes.run(
        make_fake("base", **wrong), make_fake("one", "base", "base", **wrong), items=20
    )
    assert {one.verdict for one in evaluation.compared} == {Verdict.CANNOT_TELL}
    assert not evaluation.green
    faults = [FaultPlacement(["one"], revert="toy-plain")]
    one = make_fake("one", like="base", **wrong, without={"toy-plain": {"nan": [1, 1]}})
    one.environment = {"PYTHONPATH": str(TOY)}
    evaluation = fakes.run(make_fake("base"), one, faults=faults, items=20)
    [fault] = evaluation.faults
    assert (fault.caught, fault.by) == (False, [])


def test_a_fault_is_repeated_as_often_as_a_proof_requires(fakes: Fakes) -> None:
    with_fault, without = fakes.root / "with", fakes.root / "without"
    be = {"wrong": [2, 1], "record": str(with_fault)}
    faults = [FaultPlacement(["one"], revert="toy-plain")]
    one = make_fake("one", like="base", record=str(without), without={"toy-plain": be})
    one.environment = {"PYTHONPATH": str(TOY)}
    evaluation = fakes.run(make_fake("base"), one, faults=faults, items=20)
    assert evaluation.faults[0].caught
    repeated = with_share([2, 1], 20)[:6][-1] + 1  # the sixth that fails, and all before it
    assert len(with_fault.read_text().splitlines()) == 20 + 4 * repeated
    noise = len(evaluation.find_configuration("one").again)
    assert len(without.read_text().splitlines()) == 20 + noise + 3 * repeated


def test_a_fault_that_nobody_knows_is_refused_before_anything_is_served(fakes: Fakes) -> None:
    with pytest.raises(UnknownToggleError, match="toy-plane"):
        fakes.prepare_run(make_fake("base"), faults=[FaultPlacement(["base"], revert="toy-plane")])


def test_a_candidate_that_dies_has_failed(fakes: Fakes) -> None:
    dying = make_fake("one", "base", dies_at=30, code=-9, last="CUDA out of memory")
    evaluation = fakes.run(make_fake("base"), dying)
    served = evaluation.find_configuration("one")
    assert served.failure == "the server died: out of memory: CUDA out of memory (SIGKILL)"
    assert any(answer.right for answer in served.answers)
    found = get_only_result(evaluation)
    assert (found.verdict, found.errors > 0) == (Verdict.FAILS, True)
    assert "out of memory" in found.words
    assert not evaluation.green
