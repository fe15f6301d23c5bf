"""Every page fits at 1,400 and at 800 pixels: nothing sticks out of it, nothing is cut off."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import evaluated
import msgspec
import pytest
import sample
import test_matrix_pages
from rendering import open_page

from harness.runs.audit import audit_record
from harness.runs.audit.release_audit import ReleaseAudit
from harness.store.bisect.values import BisectAnswer, BisectSearch, BisectTrial, ToggleSearch
from harness.store.prove.values import ProveRun
from harness.store.record_files import read_record_text
from reports.audit import page as audit_page
from reports.bisect import page as bisect_page
from reports.eval import page as eval_page
from reports.matrix import page as matrix_page
from reports.prove import page as prove_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser

RECORDED = Path(__file__).parents[2] / "bench" / "recorded"
# Text that a narrower box cuts off, unless it scrolls; text of a picture beyond its edges.
CUT_OFF = """() => {
  const found = [];
  for (const one of document.querySelectorAll('body *')) {
    if (!one.checkVisibility() || one.closest('.hidden, .where, pre')) continue;
    const { overflowX, display } = getComputedStyle(one);
    if (overflowX === 'auto' || display === 'inline' || one.closest('svg')) continue;
    if (overflowX === 'hidden' && one.clientWidth && one.scrollWidth > one.clientWidth + 1)
      found.push(`cut off: ${one.className}: ${one.textContent.trim().slice(0, 60)}`);
  }
  for (const picture of document.querySelectorAll('svg')) {
    if (!picture.checkVisibility() || getComputedStyle(picture).overflow === 'visible') continue;
    const edge = picture.getBoundingClientRect();
    for (const text of picture.querySelectorAll('text')) {
      const box = text.getBoundingClientRect();
      if (box.left < edge.left - 1 || box.right > edge.right + 1)
        found.push(`beyond its picture: ${text.textContent}`);
    }
  }
  return [...new Set(found)];
}"""
SCROLLING = """() => [...document.querySelectorAll('.scroll, .picture')]
  .filter((one) => one.checkVisibility() && one.scrollWidth > one.clientWidth + 1)
  .map((one) => one.ariaLabel || one.id)"""
WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def make_long_search() -> BisectSearch:
    """Return a search among 74 toggles, of which the last is the culprit."""
    names = [f"{26000 + number}-with-a-name" for number in range(74)]
    trials = [
        BisectTrial("0.5.23", names[start:], "search", answer, f"exit code {code}", 1.5)
        for start, answer, code in (
            (0, BisectAnswer.FAILS, 3),
            (37, BisectAnswer.FAILS, 3),
            (73, BisectAnswer.FAILS, 3),
        )
    ]
    for trial in trials:
        trial.search_name = "toggles"
    part = ToggleSearch("toggles", "0.5.23", "revert", names, minimal_sets=[names[73:]], done=True)
    return BisectSearch(
        *("20261121-000000-abcd", "toggles", "2026-11-21T00:00:00+00:00", ["python", "x.py"]),
        status="finished",
        trials=trials,
        toggle_searches=[part],
        verdict="found",
    )


@functools.cache
def read_audit() -> ReleaseAudit:
    """Return the recorded audit, of a few kernels with findings and a few without."""
    whole = audit_record.read_record(RECORDED / "audit-0.5.23.json.xz")
    found = [kernel for kernel in whole.kernels if kernel.findings]
    others = [kernel for kernel in whole.kernels if not kernel.findings]
    return dataclasses.replace(whole, kernels=(*found[:4], *others[:40]))


def read_proof() -> ProveRun:
    data = read_record_text(RECORDED / "proofs" / "cpu.json.xz")
    return msgspec.json.decode(data, type=ProveRun)


def drop_findings(audit: ReleaseAudit) -> ReleaseAudit:
    kernels = tuple(kernel for kernel in audit.kernels if not kernel.findings)
    return dataclasses.replace(audit, kernels=kernels)


PAGES: dict[str, Callable[[], str]] = {
    "a proof with every verdict": lambda: prove_page.render_page(
        [sample.every_verdict(), sample.lifecycle()]
    ),
    "a proof on one release": lambda: prove_page.render_page(
        sample.every_verdict(sample.one_release())
    ),
    "lifetimes on eleven releases": lambda: prove_page.render_page(sample.lifecycle(11)),
    "the recorded proof": lambda: prove_page.render_page(read_proof()),
    "a search among 74 toggles": lambda: bisect_page.render_page(make_long_search()),
    "an evaluation": lambda: eval_page.render_page(evaluated.fine()),
    "a large evaluation": lambda: eval_page.render_page(evaluated.large()),
    "a matrix run": lambda: matrix_page.render_page(test_matrix_pages.fine()),
    "an audit": lambda: audit_page.render_page(read_audit()),
    "an audit without findings": lambda: audit_page.render_page(drop_findings(read_audit())),
}


@pytest.mark.parametrize("width", [1400, 800])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits(name: str, width: int, browser: Browser, tmp_path: Path) -> None:
    tab = open_page(browser, PAGES[name](), tmp_path / "page.html", width=width)
    assert tab.evaluate(WIDER) == 0
    assert tab.evaluate(CUT_OFF) == []
    if width == 1400:
        assert tab.evaluate(SCROLLING) == []
    tab.close()


def test_the_outcome_of_each_run_of_a_search_is_in_sight(browser: Browser, tmp_path: Path) -> None:
    text = bisect_page.render_page(make_long_search())
    tab = open_page(browser, text, tmp_path / "search.html", width=800)
    for cell in tab.locator(".picture td.how").all():
        assert "exit code 3" in cell.inner_text()
        box = cell.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] < 800
    tab.close()


def test_a_toggle_that_only_evaluations_cover_says_which(browser: Browser, tmp_path: Path) -> None:
    tab = open_page(browser, prove_page.render_page(read_proof()), tmp_path / "proof.html")
    rows = tab.locator("tr.line", has_text="attention-share-off-by-one")
    assert "only unfix eval two-cards" in rows.first.inner_text()
    marks = {box.get_attribute("data-mark") for box in rows.first.locator(".box").all()}
    assert marks == {"eval only"}
    tab.close()


def test_the_reach_of_a_side_is_labelled(browser: Browser, tmp_path: Path) -> None:
    text = prove_page.render_page(sample.every_verdict(sample.one_release()))
    tab = open_page(browser, text, tmp_path / "proof.html")
    row = tab.locator("tr.line", has=tab.locator("[data-mark=toothless]"))
    assert row.locator(".side").all_inner_texts() == [
        "passed, ran 16 times",
        "passed, ran 16 times",
    ]
    assert "how often the toggled code ran" in tab.locator("body").inner_text()
    tab.close()


@pytest.mark.parametrize(("name", "word"), [("an audit", "Red"),
                                            ("an audit without findings", "Green")])  # fmt: skip
def test_an_audit_has_a_banner(name: str, word: str, browser: Browser, tmp_path: Path) -> None:
    tab = open_page(browser, PAGES[name](), tmp_path / "audit.html")
    assert tab.locator(".summary .colour").inner_text() == word
    if word == "Green":
        assert "No finding" in tab.locator(".summary").inner_text()
    tab.close()
