"""The page of a proof in a real browser: its content, clicks, keys."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
import sample
from calling import wait_until
from rendering import record_events

from harness.store.prove.values import ProveRun
from reports.prove import page

if TYPE_CHECKING:
    from playwright.sync_api import Page

Open = Callable[..., "Page"]
Scheme = Literal["light", "dark"]
TOOTHLESS = "27460@0.5.9,cpu"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    runs: dict[str, list[ProveRun]] = {
        "bad": [sample.make_run_of_every_verdict(), sample.make_lifecycle()],
        "one": [sample.make_run_of_every_verdict(sample.one_release())],
        "life": [sample.make_lifecycle(11)],
        "empty": [sample.make_empty_run()],
        "large": [sample.make_large_run()],
    }
    for name, some in runs.items():
        (folder / f"{name}.html").write_text(page.render_page(some))
    return {name: folder / f"{name}.html" for name in runs}


@pytest.fixture
def opener(tab: Page, files: dict[str, Path]) -> Iterator[Open]:
    """Open a page in the tab; fail the test on a message or a request."""

    def open_page(
        name: str = "bad", hash: str = "", width: int = 1400, scheme: Scheme = "light"
    ) -> Page:
        tab.goto("about:blank")
        tab.set_viewport_size({"width": width, "height": 900})
        tab.emulate_media(color_scheme=scheme)
        tab.goto(files[name].as_uri() + (f"#{hash}" if hash else ""))
        return tab

    with record_events(tab) as events:
        yield open_page
    assert [event for event in events if not event.startswith(("file:", "about:"))] == []


def find_box(tab: Page, toggle: str, column: int) -> Any:
    row = tab.locator("tr.line", has=tab.locator(".id", has_text=re.compile(f"^{toggle}$")))
    return row.locator(".box").nth(column)


def close_panel(tab: Page) -> None:
    """Close the panel, and wait for the browser to do so."""
    tab.keyboard.press("Escape")
    # The content policy of the page forbids `wait_for_function`.
    wait_until(lambda: tab.evaluate("!panel.open && !location.hash.includes('box=')"))


def test_the_summary_has_the_verdict_and_the_problems(opener: Open) -> None:
    tab = opener()
    text = tab.locator(".summary").inner_text()
    assert "Red" in text
    assert "1 toothless" in text
    assert "no guard names 26972" in text
    assert "2026-11-21 19:00:00 UTC" in text
    assert tab.title().startswith("RED · unfix prove")
    assert "1650 cells proven" in opener("large").locator("h1").inner_text()
    assert "Red" in opener("empty").locator(".summary").inner_text()


def test_the_matrix_has_a_button_for_each_toggle_on_each_release_with_a_sign(opener: Open) -> None:
    tab = opener()
    assert tab.locator(".box").count() == len(sample.TOGGLES) * len(sample.RELEASES)
    assert find_box(tab, "27460", 0).inner_text().split()[:2] == ["○", "toothless"]
    assert find_box(tab, "27460", 1).locator(".glyph").inner_text() == "✓"
    assert find_box(tab, "25418-combine-int64", 0).get_attribute("data-mark") == "absent"


def test_a_click_shows_the_details_of_a_box(opener: Open) -> None:
    tab = opener()
    find_box(tab, "27460", 0).click()
    panel = tab.locator("#panel")
    text = panel.inner_text()
    assert "27460 on 0.5.9, cpu" in text
    assert "it would not notice the bug" in text
    assert "By its sources this release is buggy" in text
    assert "should have failed" in text
    assert "its code ran 16 times" in text
    assert "toggled live" in text
    assert sample.EXAMPLE[2] in panel.locator(".example").first.inner_text()
    replays = panel.locator(".replay:visible code")
    assert replays.first.inner_text().startswith("./unfix prove 27460 --release 0.5.18")
    link = panel.locator(".panel-facts a").first
    assert link.get_attribute("href") == "https://github.com/sgl-project/sglang/pull/27460"
    added = panel.locator(".diff.added").all_inner_texts()
    assert [line.strip() for line in added] == [
        line for line in sample.PATCH.splitlines() if line.startswith("+ ")
    ]
    assert panel.locator(".diff.removed").count() == 3
    traceback = panel.locator("details.fold", has_text="traceback").first
    assert not traceback.locator("pre").is_visible()
    traceback.locator("summary").click()
    assert "AssertionError: no" in traceback.locator("pre").inner_text()


def test_text_of_a_run_is_never_markup(opener: Open) -> None:
    tab = opener()
    find_box(tab, "20606", 4).click()
    text = tab.locator("#panel-body").inner_text()
    assert "</script><script>window.broken = 1</script><b>bold</b> [bold red]markup[/]" in text
    assert "日本語 🧪" in text
    assert tab.evaluate("window.broken") is None
    assert tab.locator("img").count() == 0
    assert "onerror=alert(1)" in tab.locator(".summary").inner_text()


def test_the_filters_select_rows(opener: Open) -> None:
    tab = opener()

    def list_visible_ids() -> list[str]:
        return tab.locator("tr.line:visible .id").all_inner_texts()

    tab.locator("#search").fill("kv_indices 27460")
    assert list_visible_ids() == ["27460"]
    tab.locator("#search").fill("told_is_nowhere")
    assert list_visible_ids() == []
    assert tab.locator("#none").is_visible()
    tab.locator("#clear").click()
    assert len(list_visible_ids()) == len(sample.TOGGLES)
    tab.locator("#family").select_option("sparse_prefill")
    assert list_visible_ids() == ["25418-combine-int64", "25418-sparse-prefill-switch"]
    tab.locator("#clear").click()
    tab.locator(".chip[data-mark=toothless]").click()
    assert list_visible_ids() == ["27460"]
    assert tab.locator(".box.dim:visible").count() == 5
    tab.locator("#clear").click()
    tab.locator("#only").check()
    assert "1 of" not in tab.locator("#shown").inner_text()
    assert set(list_visible_ids()) == {
        row["id"] for row in read_rows(tab) if not all(mark in GOOD for mark in row["marks"])
    }


GOOD = {"proven", "n/a", "absent"}


def read_rows(tab: Page) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tab.evaluate(
        """() => [...document.querySelectorAll('tr.line')].map((row) => ({
        id: row.querySelector('.id').textContent,
        marks: [...row.querySelectorAll('.box')].map((box) => box.dataset.mark)}))"""
    )
    return found


def test_a_link_opens_the_same_box_under_the_same_filters(opener: Open) -> None:
    tab = opener()
    tab.locator("#search").fill("27460 mla")
    find_box(tab, "27460", 0).click()
    hash = tab.evaluate("location.hash.slice(1)")
    again = opener(hash=hash)
    assert "27460 on 0.5.9" in again.locator("#panel-title").inner_text()
    assert again.locator("#search").input_value() == "27460 mla"
    assert again.locator("tr.line:visible").count() == 1
    close_panel(again)
    assert again.evaluate("location.hash") == "#q=27460+mla"


def test_with_one_release_the_guards_are_rows(opener: Open) -> None:
    tab = opener("one")
    rows = tab.locator("tr.line")
    assert rows.count() == len(sample.one_release().cells)
    row = tab.locator("tr.line", has=tab.locator("[data-mark=toothless]"))
    assert row.locator(".side").all_inner_texts() == 2 * ["passed, ran 16 times"]
    assert "how often the toggled code ran" in tab.locator("body").inner_text()
    row.locator(".box").click()
    assert tab.locator(".guard-part").count() == 1
    assert "guard=" not in tab.evaluate("location.hash")
    again = opener("one", hash=tab.evaluate("location.hash.slice(1)"))
    assert "toothless" in again.locator(".answer").inner_text()


def test_how_long_a_bug_lived_is_a_picture_that_marks_where_it_differs(opener: Open) -> None:
    tab = opener("life")
    row = tab.locator(".life-row", has_text="27460")
    label = row.locator("svg").get_attribute("aria-label") or ""
    assert "0.5.12: by its sources has the bug; running found the bug." in label
    assert "0.5.13: by its sources has the fix; running found the bug: THEY DIFFER" in label
    assert row.locator(".ring").count() == 1
    assert row.locator(".sign-bug").count() == 5
    assert "bug in 0.5.9 to 0.5.13" in row.inner_text()
    assert tab.locator(".ring").count() == 2, "one in the picture, one in its legend"
    assert row.locator(".notes").bounding_box()
    scrolls = tab.evaluate("document.querySelector('#life').scrollWidth - life.clientWidth")
    assert scrolls <= 0
    row.locator(".slot").nth(4).click()
    assert "27460 on 0.5.13" in tab.locator("#panel-title").inner_text()


CONTRAST = """() => {
  const paint = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const light = (colour) => {
    paint.fillStyle = colour;
    paint.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...paint.getImageData(0, 0, 1, 1).data].map((c) => c / 255)
      .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const under = (one) => {
    const ground = one ? getComputedStyle(one).backgroundColor : 'white';
    return ground === 'rgba(0, 0, 0, 0)' ? under(one.parentElement) : ground;
  };
  const wanted = '.box, .count, .key, .answer, .hint, .title, .notes, .took, .chip, .side-head *, '
    + '.diff, .problems li, h1, .colour, .panel-state, .panel-facts a, .fold > summary, .more, '
    + '.guard-file, .where, .legend li, dt';
  const all = [...document.querySelectorAll(wanted)];
  return all.filter((one) => one.checkVisibility()).map((one) => {
    const [ink, ground] = [getComputedStyle(one).color, under(one)].map(light);
    const ratio = (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
    return { who: `${one.className} ${one.textContent.slice(0, 20)}`, ratio };
  });
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["bad", "life"])
def test_every_text_has_enough_contrast(opener: Open, scheme: str, name: str) -> None:
    tab = opener(name, hash=f"box={TOOTHLESS}", scheme=scheme)
    found = tab.evaluate(CONTRAST)
    assert len(found) > 60
    assert [one for one in found if one["ratio"] < 4.5] == []


@pytest.mark.parametrize("name", ["bad", "one", "life", "empty"])
def test_on_400_pixels_the_page_itself_never_scrolls_sideways(opener: Open, name: str) -> None:
    tab = opener(name, width=400)
    wider = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert tab.evaluate(wider) == 0
    if name == "empty":
        return
    tab.locator(".box").first.click()
    assert tab.evaluate(wider) == 0
    assert tab.evaluate("panel.getBoundingClientRect().width") <= 400
    assert tab.evaluate("document.querySelector('#panel-body').scrollWidth") <= 400


def test_a_large_run_opens_fast_and_reads_no_details_before_they_are_asked_for(
    opener: Open,
) -> None:
    ready = "performance.getEntriesByType('navigation')[0].domComplete"
    usual = opener("bad", width=1600).evaluate(ready)
    tab = opener("large", width=1600)
    assert tab.evaluate(ready) < 20 * max(usual, 50), "thirty times the cells, in milliseconds"
    assert tab.locator("pre").count() == 0
    find_box(tab, "25007", 3).click()
    assert tab.locator("#panel pre").count() > 6


def test_the_file_stands_alone_and_allows_nothing_but_itself(files: dict[str, Path]) -> None:
    whole = files["bad"].read_text()
    text = html.unescape(files["bad"].read_text().split("</head>")[0])
    assert "default-src 'none'" in text
    assert not re.search(
        r"<(link|img|iframe)\b|@import|url\(http|\ssrc=\"", text.split("</head>")[0]
    )
    assert not re.search(r"<[^>]*\son[a-z]+=", re.sub(r"(?s)<script.*?</script>", "", whole))
    scripts = re.findall(
        r'<script type="application/json" id="([^"]+)">(.*?)</script>', whole, re.S
    )
    assert len(scripts) == 1 + len(sample.TOGGLES) * len(sample.RELEASES)
    for _, held in scripts:
        json.loads(held)
        assert "<" not in held, "a script element ends at what looks like its end"
    assert files["large"].stat().st_size < 12_000_000


def test_the_command_can_be_pasted_into_a_shell() -> None:
    run = sample.make_empty_run()
    run.command = ["./unfix", "prove", "-k", "a or b"]
    assert "./unfix prove -k 'a or b'" in html.unescape(page.render_page([run]))
