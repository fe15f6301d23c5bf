"""A search on a page, in Markdown and on a terminal: the culprits, each run, no active content."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rendering import show_page, to_text

from harness.core.outcomes import RunStatus, Verdict
from harness.store.bisect.values import BisectSearch, BisectStep, BisectTrial, ToggleSearch
from harness.store.prove.values import ToggleFacts
from reports.bisect import markdown, page, terminal

if TYPE_CHECKING:
    from playwright.sync_api import Page

HOSTILE = "<script>document.title='owned'</script> | `x` \x1b[31m]]> {{ 7 * 7 }}"


def make_trial(
    toggles: list[str], answer: Verdict, why: str = "search", part: str = "toggles"
) -> BisectTrial:
    how = {"passes": "exit code 0", "fails": "exit code 3"}.get(answer.value, HOSTILE)
    return BisectTrial(
        "1.0", toggles, why, answer, how, 0.5, output=HOSTILE, replay="again", search_name=part
    )


def make_search() -> BisectSearch:
    names = ["a", "b", "c", "d"]
    trials = [
        make_trial([], Verdict.PASSES, "base"),
        make_trial(["a", "b"], Verdict.FAILS),
        make_trial(["c", "d"], Verdict.CANNOT_TELL),
        make_trial(["a"], Verdict.FAILS, "proof"),
        make_trial(["a"], Verdict.PASSES, "proof"),
        make_trial(["b", "c", "d"], Verdict.PASSES, "proof"),
    ]
    part = ToggleSearch(
        "toggles",
        "1.0",
        "revert",
        names,
        left_out={"e": HOSTILE},
        conflicts=[["c", "d"]],
        patches={"a": "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-right\n+wrong"},
        minimal_sets=[["a"]],
        others_show_symptom=False,
        confidence=0.997,
        done=True,
    )
    return BisectSearch(
        "20261121-000000-abcd",
        "toggles",
        "2026-11-21T00:00:00+00:00",
        ["python", HOSTILE],
        command=["unfix", "bisect"],
        status=RunStatus.FINISHED,
        seconds=3.0,
        toggles=[ToggleFacts("a", HOSTILE, "family", "overflow", [123], HOSTILE)],
        trials=trials,
        toggle_searches=[part],
        verdict="found",
        summary=f"a: it makes it fail {HOSTILE}",
    )


@pytest.fixture
def search() -> BisectSearch:
    return make_search()


def test_the_page_shows_the_search_without_active_content(
    search: BisectSearch, tab: Page, tmp_path: Path
) -> None:
    show_page(tab, page.render_page(search), tmp_path / "search.html")
    assert tab.title() == "found · unfix bisect toggles"
    assert tab.locator("text={{ 7 * 7 }}").count()
    rows = tab.locator(".picture tbody tr")
    assert rows.count() == 5  # the two proofs with 'a' are one
    assert rows.nth(3).locator("i.in").count() == 1
    assert rows.nth(3).locator("i.in.blamed").count() == 1
    assert "passes 1x, fails 1x" in rows.nth(3).inner_text()
    assert rows.nth(2).locator(".badge").get_attribute("title") == "cannot tell"
    assert tab.locator(".blame .minus").nth(1).inner_text() == "-right"
    assert tab.locator("a[href$='/pull/123']").count() == 1


@pytest.mark.parametrize("verdict", ["none", "cannot tell", ""])
def test_a_search_without_culprit_is_never_green(
    search: BisectSearch, verdict: str, tmp_path: Path
) -> None:
    search.verdict, search.toggle_searches[0].minimal_sets, search.toggle_searches[0].patches = (
        verdict,
        [],
        {},
    )
    text = page.render_page(search)
    assert 'class="summary is-green"' not in text
    assert "Culprit" not in text


def test_a_history_is_a_list_of_stops(search: BisectSearch) -> None:
    search.kind = "releases"
    search.step = BisectStep(["0.9", "1.0", "1.1"], "1.0", "1.1", changed=["a: buggy → fixed"])
    search.trials.append(make_trial([], Verdict.FAILS, part="releases"))
    text = page.render_page(search)
    assert text.count('class="how">not run') == 2
    assert "a: buggy → fixed" in text
    assert "- 1.0: ✕ exit code 3" in markdown.render_markdown(search)


def test_markdown_and_a_terminal_hold_the_same(search: BisectSearch) -> None:
    text = markdown.render_markdown(search)
    assert "<script>" not in text
    assert "| 4 | a | proof | ~ passes 1x, fails 1x |" in text
    assert "+wrong" in text
    shown = to_text(terminal.print_run, search)
    assert "●●··" in shown
    assert "+wrong" in shown
