"""A matrix run on a page, on a terminal and in Markdown: failures first."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from evaluated import HOSTILE, LONG
from rendering import show_page, to_text

from harness.core.outcomes import Outcome, RunStatus
from harness.store.matrix.values import CellAttempt, MatrixCellResult, MatrixRun
from reports.matrix import markdown, page, terminal, view

if TYPE_CHECKING:
    from playwright.sync_api import Page

VISIBLE = "<script>document.title='owned'</script>"


def make_cell(
    name: str, *outcomes: Outcome, kv: str = "auto", seconds: float = 2.0
) -> MatrixCellResult:
    tried = [
        CellAttempt(
            *(number, outcome, f"ended {outcome}", "then", seconds, seconds, "node-1"),
            f"first line\nlog of {name}, attempt {number}",
            {"proven": 3},
            number == len(outcomes),
        )
        for number, outcome in enumerate(outcomes, 1)
    ]
    values = {"kv": kv, "page": str(len(name) % 3)}
    return MatrixCellResult(name, values, "prove", ["unfix", "prove"], "covering", None, tried)


def make_run(*cells: MatrixCellResult, **changes: Any) -> MatrixRun:
    run = MatrixRun(
        *("matrix-1", "nightly", "my matrix.yaml", "digest-1", len(cells), {}),
        *("2026-11-21T00:00:00+00:00", RunStatus.FINISHED, 75.0, ["unfix", "matrix", "run"]),
        cells=list(cells),
    )
    for name, value in changes.items():
        setattr(run, name, value)
    return run


def make_fine_run() -> MatrixRun:
    return make_run(*(make_cell(f"c{n}", Outcome.PASSED) for n in range(4)))


def make_awful_run() -> MatrixRun:
    """Return one cell of each outcome, with hostile text in every field."""
    hostile = make_cell(HOSTILE, Outcome.SEGFAULT, kv=HOSTILE)
    hostile.work, hostile.why, hostile.command = HOSTILE, HOSTILE, [HOSTILE]
    hostile.attempts = [
        CellAttempt(
            *(1, Outcome.SEGFAULT, HOSTILE, HOSTILE, 1.0, 0.0, HOSTILE),
            *(HOSTILE + LONG, {HOSTILE: 1}, True),
        )
    ]
    cells = [
        *(make_cell(f"green-{n}", Outcome.PASSED) for n in range(5)),
        make_cell("missing"),
        make_cell("not-ready", Outcome.NOT_READY),
        make_cell("lost", Outcome.LOST, Outcome.LOST),
        make_cell("relocated", Outcome.LOST, Outcome.PASSED),
        make_cell("flaky", Outcome.FAILED, Outcome.PASSED),
        make_cell("error", Outcome.ERROR),
        make_cell("failed", Outcome.FAILED, kv="fp8", seconds=500.0),
        make_cell("hang", Outcome.HANG, kv="fp8"),
        hostile,
    ]
    return make_run(*cells, name=HOSTILE, command=[HOSTILE], notes=[HOSTILE], file=HOSTILE)


def read_heads(tab: Page) -> list[str]:
    return tab.locator(".failure h3 .badge").all_inner_texts()


def test_the_page_shows_failures_first_without_active_content(tab: Page, tmp_path: Path) -> None:
    run = make_awful_run()
    show_page(tab, page.render_page(run), tmp_path / "matrix.html")
    assert tab.title().startswith("RED · unfix matrix · <script>document.title")
    assert tab.locator(".verdict .colour").inner_text() == "Red"
    words = [head.split()[-1] for head in read_heads(tab)]
    assert words == ["segfault", "hang", "failed", "error", "flaky", "lost", "not-ready", "missing"]
    first = tab.locator(".failure").first
    assert VISIBLE in first.inner_text()
    red = tab.locator(".failure").nth(2)
    assert "log of failed, attempt 1" in red.locator(".log").inner_text()
    shown = red.locator(".replay").inner_text()
    assert shown.startswith("unfix matrix run '<script>")
    assert shown.endswith("--cell failed")
    assert "kv fp8" in red.inner_text()
    assert "3 proven" in red.inner_text()
    # The log of a flaky cell shows why it failed.
    assert "log of flaky, attempt 1" in tab.locator(".failure").nth(4).inner_text()
    assert "1 cell failed and then passed: flaky, and not green" in tab.inner_text(".problems")
    assert tab.locator(".problems li").count() == len(run.problems) + 1
    assert "lost, then rerun" in tab.inner_text(".facts >> nth=0")


def test_cells_are_grouped_and_filtered_and_a_group_is_filled_when_it_opens(
    tab: Page, tmp_path: Path
) -> None:
    show_page(tab, page.render_page(make_awful_run()), tmp_path / "matrix.html")
    groups = tab.locator(".group")
    assert tab.locator("#shown").inner_text() == "14 cells"
    assert groups.count() == 3  # by kv: fp8, auto, and a hostile one
    assert tab.locator(".group tbody tr").count() == 0
    auto = tab.locator(".group", has=tab.locator(".name", has_text=re.compile("^auto$")))
    auto.locator("summary").click()
    auto.locator("tbody tr").first.wait_for()  # a group's event for opening comes a moment later
    assert auto.locator("tbody tr").count() == 11
    assert "6 passed" in auto.locator(".notes").inner_text()
    tab.locator("#axis").select_option(label="page")
    assert set(tab.locator(".group .name").all_inner_texts()) <= {"0", "1", "2"}
    tab.locator("#search").fill("fp8")
    assert tab.locator("#shown").inner_text() == "2 of 14 cells"
    assert [head.split()[-1] for head in read_heads(tab)] == ["hang", "failed"]
    tab.locator("#clear").click()
    tab.locator("#only").check()
    assert tab.locator("#shown").inner_text() == "8 of 14 cells"
    tab.locator("#only").uncheck()
    tab.locator(".chip[data-mark=passed]").click()
    assert tab.locator("#shown").inner_text() == "6 of 14 cells"
    assert tab.locator("#failures").is_hidden()
    tab.locator("#clear").click()
    tab.locator("button.value[data-value=fp8]").click()
    assert tab.locator("#shown").inner_text() == "2 of 14 cells"
    tab.locator("#search").fill("no such thing")
    assert tab.locator("#none").is_visible()


def test_each_value_has_its_share_of_green_and_the_most_different_axis_is_first() -> None:
    cells = [
        *(make_cell(f"a{n}", Outcome.PASSED) for n in range(6)),
        *(make_cell(f"bb{n}", Outcome.PASSED if n else Outcome.FAILED, kv="fp8") for n in range(2)),
    ]
    axes = view.make_view(make_run(*cells)).axes
    assert [axis.name for axis in axes] == ["kv", "page"]
    assert [(one.value, one.fraction_text) for one in axes[0].shares] == [
        ("fp8", "1/2"),
        ("auto", "6/6"),
    ]
    assert view.make_view(make_fine_run()).axes == []  # a column with a single value is omitted


def render_run(run: MatrixRun, width: int = 160) -> str:
    return to_text(terminal.print_run, run, width)


@pytest.mark.parametrize("width", [80, 160])
def test_a_terminal_shows_failures_with_their_log_and_replay(width: int) -> None:
    text = render_run(make_awful_run(), width)
    order = [text.index(f"\n{word}  ") for word in ("hang", "failed", "error", "flaky", "lost")]
    assert order == sorted(order)
    assert "log of failed, attempt 1" in text
    assert "--cell failed" in text
    assert re.search(r"kv +fp8 +0/2 \(0%\) +1 hang, 1 failed", text)
    assert re.search(r"slowest.*\n.*failed +8 min 20 s", text)
    assert "1 lost, then rerun" in text
    assert ": red\n  1 cell ended in a segmentation fault\n  1 cell ran past the limit\n" in text


def test_a_green_run_is_one_table_and_one_line() -> None:
    last = render_run(make_fine_run()).splitlines()[-1]
    assert last == "nightly: 4 passed, in 75 s: green"
    assert "axis" not in render_run(make_fine_run())


def test_flaky_alone_is_red_everywhere() -> None:
    run = make_run(
        make_cell("a", Outcome.PASSED),
        make_cell("b", Outcome.SEGFAULT, Outcome.PASSED),
    )
    assert "1 passed, 1 flaky, in 75 s: red" in render_run(run)
    assert markdown.render_markdown(run).startswith("## ✗ Matrix nightly: RED")
    assert "<title>RED" in page.render_page(run)


def test_markdown_escapes_all_text() -> None:
    text = markdown.render_markdown(make_awful_run())
    assert "<script>" not in re.sub(r"```.*?```", "", text, flags=re.S)
    assert text.count("<details>") == 8
    assert "log of failed, attempt 1" in text
    assert "| kv | <code>fp8</code> | 0/2 (0%) | 1 hang, 1 failed |" in text
    green = markdown.render_markdown(make_fine_run())
    assert green.startswith("## ✓ Matrix nightly: green")
