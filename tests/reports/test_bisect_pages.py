"""A search on a page, in Markdown and on a terminal: who is blamed, each run, nothing that acts."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browsing import opened
from rich.console import Console

from harness.store.bisect.values import (
    BisectAnswer,
    BisectSearch,
    BisectStep,
    BisectTrial,
    ToggleSearch,
)
from harness.store.prove.values import ToggleFacts
from reports.bisect import markdown, terminal
from reports.bisect import page as search_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HOSTILE = "<script>document.title='owned'</script> | `x` \x1b[31m]]> {{ 7 * 7 }}"


def trial(
    toggles: list[str], answer: BisectAnswer, why: str = "search", part: str = "toggles"
) -> BisectTrial:
    how = {"passes": "exit code 0", "fails": "exit code 3"}.get(answer.value, HOSTILE)
    return BisectTrial(
        "1.0", toggles, why, answer, how, 0.5, output=HOSTILE, replay="again", part=part
    )


@pytest.fixture
def search() -> BisectSearch:
    names = ["a", "b", "c", "d"]
    trials = [
        trial([], BisectAnswer.PASSES, "base"),
        trial(["a", "b"], BisectAnswer.FAILS),
        trial(["c", "d"], BisectAnswer.CANNOT_TELL),
        trial(["a"], BisectAnswer.FAILS, "proof"),
        trial(["a"], BisectAnswer.PASSES, "proof"),
        trial(["b", "c", "d"], BisectAnswer.PASSES, "proof"),
    ]
    part = ToggleSearch(
        "toggles",
        "1.0",
        "revert",
        names,
        left_out={"e": HOSTILE},
        conflicts=[["c", "d"]],
        patches={"a": "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-right\n+wrong"},
        sets=[["a"]],
        rest_shows=False,
        sure=0.997,
        done=True,
    )
    return BisectSearch(
        "20261121-000000-abcd",
        "toggles",
        "2026-11-21T00:00:00+00:00",
        ["python", HOSTILE],
        command=["unfix", "bisect"],
        status="finished",
        seconds=3.0,
        toggles=[ToggleFacts("a", HOSTILE, "family", "overflow", [123], HOSTILE)],
        trials=trials,
        parts=[part],
        verdict="found",
        summary=f"a: it makes it fail {HOSTILE}",
    )


def test_the_page_shows_it_and_nothing_on_it_acts(
    search: BisectSearch, browser: Browser, tmp_path: Path
) -> None:
    file = tmp_path / "search.html"
    file.write_text(search_page.render_page(search))
    page, said = opened(browser, file)
    assert said == [file.as_uri()]
    assert page.title() == "found · unfix bisect toggles"
    assert page.locator("text={{ 7 * 7 }}").count()
    rows = page.locator(".picture tbody tr")
    assert rows.count() == 5  # the two proofs with 'a' are one
    assert rows.nth(3).locator("i.in").count() == 1
    assert rows.nth(3).locator("i.in.blamed").count() == 1
    assert "passes 1x, fails 1x" in rows.nth(3).inner_text()
    assert rows.nth(2).locator(".badge").get_attribute("title") == "cannot tell"
    assert page.locator(".blame .minus").nth(1).inner_text() == "-right"
    assert page.locator("a[href$='/pull/123']").count() == 1
    wide = "document.documentElement.scrollWidth <= window.innerWidth"
    for width in (1280, 480):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate(wide)
    page.close()


@pytest.mark.parametrize("verdict", ["none", "cannot tell", ""])
def test_an_open_end_is_never_green(search: BisectSearch, verdict: str, tmp_path: Path) -> None:
    search.verdict, search.parts[0].sets, search.parts[0].patches = verdict, [], {}
    text = search_page.render_page(search)
    assert 'class="summary is-green"' not in text
    assert "Culprit" not in text


def test_a_history_is_a_line_of_stops(search: BisectSearch) -> None:
    search.kind = "releases"
    search.step = BisectStep(["0.9", "1.0", "1.1"], "1.0", "1.1", changed=["a: buggy → fixed"])
    search.trials.append(trial([], BisectAnswer.FAILS, part="releases"))
    page = search_page.render_page(search)
    assert page.count('class="how">not run') == 2
    assert "a: buggy → fixed" in page
    assert "- 1.0: ✕ exit code 3" in markdown.render_markdown(search)


def test_markdown_and_a_terminal_hold_the_same(search: BisectSearch) -> None:
    text = markdown.render_markdown(search)
    assert "<script>" not in re.sub(r"`[^`]*`", "", text)  # in code it is but text
    assert "| 4 | a | proof | ~ passes 1x, fails 1x |" in text
    assert "+wrong" in text
    console = Console(file=io.StringIO(), width=160)
    terminal.print_run(search, console)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "●●··" in shown
    assert "\x1b" not in shown
    assert "+wrong" in shown
