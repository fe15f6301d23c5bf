"""Every page fits at 800 to 2,000 pixels: nothing sticks out of it, nothing is cut off."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import evaluated
import msgspec
import pytest
import reviewed
import sample
import test_bisect_pages
import test_matrix_pages
from rendering import show_page

from harness.core.outcomes import RunStatus, Verdict
from harness.runs.audit import audit_record
from harness.runs.audit.release_audit import ReleaseAudit
from harness.runs.kernels.values import KernelInventory, KernelKind, ListedKernel
from harness.store.bisect.values import BisectSearch, BisectTrial, ToggleSearch
from harness.store.eval.values import Evaluation
from harness.store.fuzz.values import FuzzRun
from harness.store.mutate.values import MutationRun
from harness.store.prove.values import ProveRun
from harness.store.record_files import read_record_text
from harness.store.rehearse.values import RehearsalRun
from harness.store.zoo.values import ZooRun

if TYPE_CHECKING:
    from playwright.sync_api import Page

RECORDED = Path(__file__).parents[2] / "bench" / "recorded"
# Text that a narrower box cuts off, unless it scrolls; text of a picture beyond its edges.
CUT_OFF = """() => {
  const found = [];
  for (const one of document.querySelectorAll('body *')) {
    if (!one.checkVisibility() || one.closest('.hidden, .where, pre')) continue;
    const { overflowX, overflowY, display } = getComputedStyle(one);
    if (overflowY === 'hidden' && one.clientHeight && one.scrollHeight > one.clientHeight + 1)
      found.push(`cut off below: ${one.className}: ${one.textContent.trim().slice(0, 60)}`);
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
            (0, Verdict.FAILS, 3),
            (37, Verdict.FAILS, 3),
            (73, Verdict.FAILS, 3),
        )
    ]
    for trial in trials:
        trial.search_name = "toggles"
    part = ToggleSearch("toggles", "0.5.23", "revert", names, minimal_sets=[names[73:]], done=True)
    return BisectSearch(
        *("20261121-000000-abcd", "toggles", "2026-11-21T00:00:00+00:00", ["python", "x.py"]),
        status=RunStatus.FINISHED,
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


RunType = TypeVar("RunType")


def read_run(name: str, run_type: type[RunType]) -> RunType:
    return msgspec.json.decode(read_record_text(RECORDED / f"{name}.json.xz"), type=run_type)


def read_proof() -> ProveRun:
    return read_run("proofs/cpu", ProveRun)


def make_inventory() -> KernelInventory:
    """Return an inventory of a kernel that suites reach and of one that nothing reaches."""
    folder, suites = "sglang/kernels/ops/moe", ["suite kv_indices", "zoo LlamaForCausalLM"]
    reached = ListedKernel(
        *(KernelKind.TRITON, "copy_rows", f"{folder}/copy.py", 12),
        reached_by=suites,
        reached_lines=9,
        line_count=12,
        unreached_lines=[14, 15, 19],
    )
    missing = ListedKernel(
        *(KernelKind.CUDA, "topk_gating", f"{folder}/topk.cu", 40),
        entries=["sglang.srt.layers.moe.topk:biased_topk"],
        obstacle="it needs a card",
    )
    return KernelInventory("0.5.23", [reached, missing])


def make_fuzz_run() -> FuzzRun:
    """Return a run whose one test failed."""
    test: dict[str, Any] = {"test": "suites/a/test_a.py::test_padding", "release": "0.5.23"}
    words = dict.fromkeys(("error", "where", "kind", "headline", "blob", "date", "detail"), "x")
    lists = {"arguments": ["n=1"], "under": [], "versions": {}, "format": 1, "seed": 1}
    failure = {"name": "x", "file": "", "replay": "", "repro": words | lists | test}
    lines = dict.fromkeys(("toggled", "toggled_of", "lines", "lines_of"), 3)
    coverage = lines | {"release": "0.5.23", "file": "sglang/srt/mem_cache/memory_pool.py"}
    run = {"id": "fuzz-1", "started": "2026-11-26", "failures": [failure], "coverage": [coverage]}
    return msgspec.convert(run | {"tests": [test | {"examples": 400}]}, FuzzRun)


def drop_findings(audit: ReleaseAudit) -> ReleaseAudit:
    kernels = tuple(kernel for kernel in audit.kernels if not kernel.findings)
    return dataclasses.replace(audit, kernels=kernels)


def render_page(kind: str, *what: Any) -> str:
    return str(importlib.import_module(f"reports.{kind}.page").render_page(*what))


PAGES: dict[str, Callable[[], str]] = {
    "a proof with every verdict": lambda: render_page(
        "prove", [sample.make_run_of_every_verdict(), sample.make_lifecycle()]
    ),
    "a proof on one release": lambda: render_page(
        "prove", sample.make_run_of_every_verdict(sample.one_release())
    ),
    "lifetimes on eleven releases": lambda: render_page("prove", sample.make_lifecycle(11)),
    "the recorded proof": lambda: render_page("prove", read_proof()),
    "a search among 74 toggles": lambda: render_page("bisect", make_long_search()),
    "a search with hostile texts": lambda: render_page("bisect", test_bisect_pages.make_search()),
    "an evaluation": lambda: render_page("eval", evaluated.make_fine_evaluation()),
    "an evaluation with every fault": lambda: render_page(
        "eval", evaluated.make_awful_evaluation()
    ),
    "a large evaluation": lambda: render_page("eval", evaluated.make_large_evaluation()),
    "a matrix run": lambda: render_page("matrix", test_matrix_pages.make_fine_run()),
    "a mutation run": lambda: render_page("mutate", read_run("mutation-0.5.23", MutationRun)),
    "a zoo run": lambda: render_page("zoo", read_run("zoo-0.5.23", ZooRun)),
    "a rehearsal": lambda: render_page("rehearse", read_run("rehearse-0.5.23", RehearsalRun)),
    "a fuzzing run": lambda: render_page("fuzz", make_fuzz_run()),
    "a matrix run with every outcome": lambda: render_page(
        "matrix", test_matrix_pages.make_awful_run()
    ),
    "the recorded evaluation": lambda: render_page(
        "eval", read_run("eval-h100-0.5.23", Evaluation)
    ),
    "the recorded kernels": lambda: render_page(
        "kernels", read_run("kernels-0.5.23", KernelInventory), ""
    ),
    "an inventory of kernels": lambda: render_page("kernels", make_inventory(), "abc, changed"),
    "a review": lambda: render_page("pr", reviewed.add_everything(reviewed.make_run())),
    "an audit": lambda: render_page("audit", read_audit(), "abc"),
    "an audit without findings": lambda: render_page("audit", drop_findings(read_audit()), "abc"),
}


@functools.cache
def render_named_page(name: str) -> str:
    return PAGES[name]()


HEADS = {
    "a proof with every verdict": "SGLang 6 releases from 0.5.9 to 0.5.14 · 8 toggles · cpu",
    "the recorded proof": "SGLang 11 releases from 0.5.9 to 0.5.23 · 101 toggles · cpu",
    "a search among 74 toggles": "toggles · python x.py",
    "a mutation run": "SGLang 0.5.23",
    "a zoo run": "SGLang 0.5.23 · virtual H100",
    "an inventory of kernels": "SGLang 0.5.23",
    "an audit": "SGLang 0.5.23",
}
DIRTY = ' <b title="files differed from the commit">dirty</b>'


@pytest.mark.parametrize("name", HEADS)
def test_the_head_of_a_page_names_what_was_tested(name: str) -> None:
    assert f'class="where" title="{HEADS[name]}">{HEADS[name]}</div>' in render_named_page(name)


RELEASED: dict[str, Any] = {"id": "r", "started": "2026-11-26", "release": "0.5.23"}
COMMITS: dict[str, Callable[[str], str]] = {
    "prove": lambda commit: render_page(
        "prove", msgspec.structs.replace(sample.one_release(), settings={"commit": commit})
    ),
    "bisect": lambda commit: render_page(
        "bisect", msgspec.structs.replace(make_long_search(), machine={"unfix": commit})
    ),
    "eval": lambda commit: render_page(
        "eval", msgspec.structs.replace(evaluated.make_fine_evaluation(), machine={"unfix": commit})
    ),
    "matrix": lambda commit: render_page(
        "matrix", msgspec.structs.replace(test_matrix_pages.make_fine_run(), commit=commit)
    ),
    "mutate": lambda commit: render_page(
        "mutate", MutationRun(**RELEASED, settings={"commit": commit})
    ),
    "zoo": lambda commit: render_page(
        "zoo", ZooRun(**RELEASED, card="h100", machine={"unfix": commit})
    ),
    "audit": lambda commit: render_page("audit", read_audit(), commit),
    "kernels": lambda commit: render_page("kernels", make_inventory(), commit),
}


@pytest.mark.parametrize("kind", COMMITS)
def test_the_head_of_a_page_names_the_commit_and_whether_it_was_dirty(kind: str) -> None:
    clean, dirty = COMMITS[kind]("0123456789ab"), COMMITS[kind]("0123456789ab, changed")
    assert "unfix <code>0123456789ab</code></div>" in clean
    assert f"unfix <code>0123456789ab</code>{DIRTY}</div>" in dirty
    assert "unfix (commit unknown)</div>" in COMMITS[kind]("")


def open_page(tab: Page, name: str, folder: Path, width: int = 1280) -> None:
    show_page(tab, render_named_page(name), folder / "page.html", width=width)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_and_has_the_choice_of_a_theme(name: str, tab: Page, tmp_path: Path) -> None:
    for width in (2000, 1400, 800, 400):  # a page looks at its width as it opens
        open_page(tab, name, tmp_path, width)
        assert tab.evaluate(WIDER) == 0
        if width >= 800:
            assert tab.evaluate(CUT_OFF) == []
            wide = (
                ["Faults by configuration"] if (name, width) == ("a large evaluation", 800) else []
            )
            assert tab.evaluate(SCROLLING) == wide
    tab.locator("#theme").click()
    assert tab.locator("#theme").inner_text() == "theme: light"


def test_a_long_table_scrolls_in_its_box_below_a_filter(tab: Page, tmp_path: Path) -> None:
    one, other = make_inventory().kernels
    many = [msgspec.structs.replace(one, name=f"copy_{number}") for number in range(900)]
    page = render_page("kernels", KernelInventory("0.5.23", [*many, other]), "abc")
    show_page(tab, page, tmp_path / "page.html", width=800)
    assert tab.evaluate("document.documentElement.scrollHeight") < 3000
    tab.get_by_label("Filter").fill("topk gat")
    assert tab.locator(".filter span").inner_text() == "1 of 901 rows"
    link = tab.locator(".tall tr:not([hidden]) a").get_attribute("href")
    assert link is not None
    assert link.endswith("/blob/v0.5.23/python/sglang/kernels/ops/moe/topk.cu#L40")
    for table, rows in (("Folders", "901 rows"), ("Not reached", "1 of 901 rows")):
        tab.get_by_label(table, exact=True).locator("tbody td").last.click()
        assert tab.locator(".filter span").inner_text() == rows


@pytest.mark.parametrize("name", ["a proof with every verdict", "a proof on one release"])
def test_a_click_anywhere_in_a_row_opens_it(name: str, tab: Page, tmp_path: Path) -> None:
    open_page(tab, name, tmp_path)
    row = tab.locator("tr.line").first
    row.locator("th, td.guard").first.click()
    assert tab.locator("#panel").is_visible()


@pytest.mark.parametrize(
    "name",
    [
        *("a fuzzing run", "a review", "a matrix run with every outcome", "a zoo run", "an audit"),
        *("an evaluation", "an evaluation with every fault"),
    ],
)
def test_a_click_anywhere_in_a_row_shows_what_it_leads_to(
    name: str, tab: Page, tmp_path: Path
) -> None:
    open_page(tab, name, tmp_path)
    for group in tab.locator(".group > summary").all():
        group.click()
    cells = tab.locator("tr:has(a[href^='#']) td").all()
    assert cells, "no row leads to anything"
    cells[-1].click()
    assert tab.locator(":target").count() == 1
    assert tab.locator("details:target:not([open])").count() == 0


def test_a_search_hides_the_columns_of_toggles_that_are_out(tab: Page, tmp_path: Path) -> None:
    open_page(tab, "a search among 74 toggles", tmp_path, 800)
    assert tab.locator(".picture th.t").all_inner_texts() == ["26073-with-a-name"]
    assert tab.locator(".picture td.n:nth-child(6)").all_inner_texts() == ["73", "36", ""]
    assert tab.evaluate(SCROLLING) == []


def test_a_stopped_search_says_what_it_had_found() -> None:
    search = make_long_search()
    search.status, search.verdict = RunStatus.STOPPED, ""
    search.toggle_searches[0].minimal_sets, search.toggle_searches[0].done = [], False
    search.trials.pop()
    assert (
        "<h1>Stopped after 2 runs; what shows the symptom is among 37 toggles on SGLang 0.5.23</h1>"
    ) in render_page("bisect", search)


ANSWERS = {
    "a fuzzing run": "1 failure in 1 of 1 tests",
    "a zoo run": "116 of 139 architectures start, 14 of 14 kernel families are green on SGLang "
    "0.5.23, virtual H100",
    "an audit": "10 findings in 4 of 44 kernels of 0.5.23",
    "an audit without findings": "No finding in 40 kernels of 0.5.23",
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_page_begins_with_its_answer(name: str) -> None:
    assert f"<h1>{ANSWERS[name]}</h1>" in render_named_page(name)


def test_a_rehearsal_begins_with_its_answer() -> None:
    run = read_run("rehearse-0.5.23", RehearsalRun)
    run.deployments = [one for one in run.deployments if one.name == "llama-3.1-8b-tp1"]
    assert "<h1>Fits on one H200 with 8.3 GB free; no overflow; " in render_page("rehearse", run)


def test_the_outcome_of_each_run_of_a_search_is_in_sight(tab: Page, tmp_path: Path) -> None:
    open_page(tab, "a search among 74 toggles", tmp_path, 800)
    for cell in tab.locator(".picture td.how").all():
        assert "exit code 3" in cell.inner_text()
        box = cell.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] < 800


def test_a_toggle_that_only_evaluations_cover_says_which(tab: Page, tmp_path: Path) -> None:
    open_page(tab, "the recorded proof", tmp_path)
    rows = tab.locator("tr.line", has_text="context-share-off-by-one")
    assert "only unfix eval two-cards" in rows.first.inner_text()
    marks = {box.get_attribute("data-mark") for box in rows.first.locator(".box").all()}
    assert marks == {"eval only"}
