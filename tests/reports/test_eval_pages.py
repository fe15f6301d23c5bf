"""An evaluation on a page, in Markdown and on a terminal: an unresolved one is never green."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from evaluated import (
    make_answer,
    make_awful_evaluation,
    make_fine_evaluation,
    make_served,
)
from rendering import show_page, to_text

from harness.core.outcomes import RunStatus, Verdict
from harness.store.eval.values import (
    COMPARISON_VERDICTS,
    AnswerDifference,
    ComparisonResult,
    ItemAnswer,
    PlantedFault,
)
from reports.eval import answer_differences, markdown, page, terminal, view

if TYPE_CHECKING:
    from playwright.sync_api import Page

VISIBLE = "<script>document.title='owned'</script>"


def problems_with(**changes: Any) -> list[str]:
    evaluation = make_fine_evaluation()
    for name, value in changes.items():
        setattr(evaluation, name, value)
    assert evaluation.green is (not evaluation.problems)
    return evaluation.problems


def test_only_a_finished_evaluation_with_comparisons_is_green() -> None:
    evaluation = make_fine_evaluation()
    assert evaluation.problems == []
    assert problems_with(status=RunStatus.RUNNING) == ["the run is still going on"]
    assert problems_with(status=RunStatus.STOPPED) == ["the run was stopped"]
    assert problems_with(compared=[]) == ["nothing was compared"]
    assert problems_with(compared=evaluation.compared[-1:]) == ["nothing was compared"]  # n/a
    assert "nothing was answered" in problems_with(served=[])
    empty = [make_served("base", items=0), make_served("cache", items=0)]
    assert problems_with(served=empty, faults=[])[0] == "nothing was answered"


@pytest.mark.parametrize("verdict", COMPARISON_VERDICTS)
def test_each_unacceptable_verdict_is_red(verdict: Verdict) -> None:
    one = ComparisonResult("base", "cache", "accuracy", "recall", verdict, f"{verdict}: so it is")
    found = problems_with(compared=[*make_fine_evaluation().compared, one])
    good = verdict in ("same", "improved", "equal", "near-tie", "n/a")
    assert found == ([] if good else [f"cache against base (recall): {verdict}: so it is"])


def test_an_error_is_red_unless_the_configuration_has_a_planted_fault() -> None:
    for name, red in (("cache", True), ("cache without paged", False)):
        evaluation = make_fine_evaluation()
        evaluation.find_configuration(name).answers[0].error = "no memory"
        assert evaluation.problems == ([f"{name}: 1 of its answers are errors, as no memory"] * red)
        evaluation = make_fine_evaluation()
        evaluation.find_configuration(name).failure = "died"
        assert evaluation.problems == ([f"{name} was not served to the end: died"] * red)
        evaluation = make_fine_evaluation()
        evaluation.find_configuration(name).answers = []
        assert evaluation.problems == ([f"{name} has no answers, and no reason is recorded"] * red)


def test_the_reason_of_a_dead_server_is_whole_and_stand_ins_have_a_line_of_their_own() -> None:
    evaluation = make_fine_evaluation()
    cache = evaluation.find_configuration("cache")
    cache.failure = f"the server died: {'sizes ' * 30}out of bounds (SIGKILL)"
    cache.stand_ins = ["checked 3 of 3 kernels", "5 functions of CUDA C++: " + "jit:a.run 2, " * 20]
    (row,) = [one for one in view.make_view(evaluation).configurations if one.name == "cache"]
    assert row.remarks == cache.failure
    line = "cache: checked 3 of 3 kernels; 5 functions of CUDA C++: jit:a.run 2,"
    assert row.stand_ins.startswith(line)
    assert line in to_text(terminal.print_run, evaluation)
    for text in (
        markdown.render_markdown(evaluation).replace("\\", ""),
        page.render_page(evaluation),
    ):
        assert line in text
        assert cache.failure in text


def test_a_missed_fault_is_red() -> None:
    missed = PlantedFault("paged", "cache", "x", True, False, [], "nothing", 3)
    assert problems_with(faults=[missed])[-1] == "paged in cache was not noticed"
    evaluation = make_fine_evaluation()
    evaluation.faults[0].caught = False
    assert evaluation.problems == ["paged in cache was not noticed"]
    assert view.make_view(evaluation).faults[0].mark is view.MISSED_MARK
    evaluation.faults[0].reach = 0
    assert view.make_view(evaluation).faults[0].mark is view.UNREACHED_MARK


def test_the_page_shows_all_without_active_content(tab: Page, tmp_path: Path) -> None:
    evaluation = make_awful_evaluation()
    show_page(tab, page.render_page(evaluation), tmp_path / "eval.html")
    assert tab.title().startswith("RED · unfix eval · <script>document.title")
    assert tab.locator("script").count() == 1  # of every page
    assert tab.locator(".verdict .colour").inner_text() == "Red"
    assert tab.locator(".problems li").count() == len(evaluation.problems)
    rows = [tab.locator(f"section:has(#{name}) .listed tbody tr:not(.below)") for name in
            ("configurations", "comparisons", "faults")]  # fmt: skip
    assert [one.count() for one in rows] == [
        len(evaluation.served), len(evaluation.compared), len(evaluation.faults)
    ]  # fmt: skip
    below = tab.locator("section:has(#configurations) .below")
    assert below.count() == len(evaluation.served)
    assert below.filter(has_text="no CUDA device is here").count() == 1
    assert VISIBLE in rows[0].nth(4).inner_text()
    assert "17/20" in rows[0].nth(4).inner_text()
    assert "regressed" in rows[1].nth(0).inner_text()  # open problems come first
    assert "+15.0% [+11.0%, +19.0%]" in rows[1].nth(0).inner_text()
    assert "with a planted fault" in rows[1].last.inner_text()
    assert tab.locator("#matrix tbody tr").count() == 5
    assert tab.locator("#matrix .badge").count() == 5
    assert tab.locator("text={{ 7 * 7 }}").count()
    details = tab.locator("details.pairing")
    assert details.count() == 2
    details.first.locator("summary").click()
    item = details.first.locator(".item").nth(2)
    assert item.locator("mark").all_inner_texts() == ["c", "X"]
    assert "token 2: c became X" in item.inner_text()
    assert "logprob -0.25 became no number" in item.inner_text()
    details.nth(1).locator("summary").click()
    assert "logprob -0.25 became -1.5 (-1.25)" in details.nth(1).inner_text()
    assert details.nth(1).locator("mark").all_inner_texts() == ["b", "b"]


def make_sides(one: ItemAnswer, other: ItemAnswer, at: int | None = None) -> Any:
    evaluation = make_fine_evaluation()
    evaluation.served[0].answers, evaluation.served[1].answers = [one], [other]
    compared = evaluation.compared[0]
    compared.differences = [AnswerDifference(one.task, one.number, "differs", at)]
    ((item,),) = answer_differences.choose_items(evaluation, [compared])
    return item


def test_the_first_token_that_differs_is_marked() -> None:
    one, other = make_answer("t", 0), make_answer("t", 0)
    other.tokens, other.text = ["ab", "\n"], "ab"
    one.tokens = ["ab", "cd"]
    item = make_sides(one, other, at=1)
    assert (item.base.before, item.base.differing_token, item.base.after) == ("ab", "cd", "")
    assert (item.candidate.before, item.candidate.differing_token) == ("ab", "⏎")
    other.tokens = ["ab"]
    assert make_sides(one, other).candidate.differing_token == "∎"  # it ends here


def test_markdown_shows_all_and_escapes_all_text() -> None:
    text = markdown.render_markdown(make_awful_evaluation())
    assert text.startswith("## ✗ Evaluation ")
    assert "<script>" not in text
    rows = [row for row in text.splitlines() if row.startswith("| ")]
    wide = {row.count("|") for row in rows}
    assert wide == {13, 7}  # a hostile name is one cell
    assert "✖ **failed**" in text
    assert "○ **missed**" in text
    assert "n/a | llama | 0.5.18 |  |  |  |  |  |  |  | no CUDA device is here |" in text
    assert len(text) < 20_000
    green = markdown.render_markdown(make_fine_evaluation())
    assert green.startswith("## ✓ Evaluation cpu: green")
    assert "1 of 1 faults caught" in green
    assert "**" not in green.replace("**4 same", "").replace("need not be)**", "")


@pytest.mark.parametrize("width", [80, 160])
def test_a_terminal_shows_three_tables_and_the_problems(width: int) -> None:
    shown = to_text(terminal.print_run, make_awful_evaluation(), width)
    for word in ("regressed", "cannot tell", "no answers", "missed", "unreached", "2.35"):
        assert word in re.sub(r"\s", " ", shown) or width < 100
    assert shown.count("never in cache was not noticed") == 1
    assert ": red\n" in shown
    assert to_text(terminal.print_run, make_fine_evaluation()).splitlines()[-1] == (
        "4 same, 1 equal, 1 n/a, 1 of 1 faults caught (0 of 1 that need not be), "
        "cpu, in 75 s: green"
    )
