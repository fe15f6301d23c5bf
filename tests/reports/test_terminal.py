"""A proof on a terminal, wide or narrow."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import sample
from rendering import to_text

from harness.core.outcomes import Verdict
from harness.store.prove.values import ProveRun
from reports.prove import terminal, view
from reports.shared import terminal_svg


def render_run(run: ProveRun, width: int = 80) -> str:
    return to_text(terminal.print_run, run, width)


def find_line(text: str, begins: str) -> str:
    return next(line for line in text.splitlines() if line.strip().startswith(begins))


def test_a_green_run_ends_in_a_line_that_says_so() -> None:
    text = render_run(sample.one_release())
    assert text.splitlines()[-2:] == [
        "--seed 0 drew the order of the sides; 11 cells toggled live",
        "11 cells proven, on 0.5.14, cpu, in 73 s: green",
    ]
    assert find_line(text, "27460").split() == ["27460", "2", "proven", "16", "/", "12", "1.7", "s"]
    assert "--failed" not in text


def test_a_red_run_says_what_is_wrong_and_what_to_do() -> None:
    run = sample.one_release()
    cell = next(cell for cell in run.cells if cell.toggle == "20606")
    cell.verdict = Verdict.BROKEN
    cell.sides = {"fixed": sample.make_failing_side("fixed")}
    run.releases[0].unguarded = ["25015"]
    text = render_run(run)
    assert "20606" in find_line(text, "broken")
    assert "failed with the fix applied, its code ran 16 times" in text
    assert "wrote kv_indices[1, 0], outside of what program (0, 0, 1)" in text
    assert all(part in text for part in sample.EXAMPLE[:2])
    replay = cell.sides["fixed"].replay
    assert f"replay: {replay}\n" in text, "a replay line that is broken up cannot be copied"
    assert ": red\n" in text
    assert "0.5.14: no guard names 25015" in text
    assert text.rstrip().endswith("unfix prove --failed")


@pytest.mark.parametrize("width", [80, 90, 100, 120, 160, 200])
def test_tables_fit_the_terminal_and_keep_their_columns_whole(width: int) -> None:
    run = sample.one_release()
    run.toggles[0].title = "a story that is far too long for a table " * 6
    text = render_run(run, width)
    for row in view.make_view(run).rows:
        cells = find_line(text, f"{row.toggle.id} ").split()[1:3]
        assert cells == [str(len(row.boxes[0].cells)), "proven"]
    runs = (
        sample.make_run(11), sample.make_lifecycle(11), sample.make_run_of_every_verdict(),
        sample.make_large_run(),
    )  # fmt: skip
    tables = [render_run(one, width).split("\n\n")[0] for one in runs]
    assert [line for one in (text, *tables) for line in one.splitlines() if len(line) > width] == []


def test_every_verdict_can_be_told_without_colours() -> None:
    text = render_run(sample.make_run_of_every_verdict())
    row = find_line(text, "27460")
    assert "TTH" in row
    for mark in ("TTH toothless", "UNR unreached", "SEG segfault", "NOG unguarded"):
        assert mark in text
    assert "toothless" in find_line(render_run(sample.make_run_of_every_verdict(), 200), "27460")


def test_more_releases_than_fit_go_below_each_other() -> None:
    text = render_run(sample.make_run(11), 50)
    heads = [one for one in text.splitlines() if one.startswith("toggle")]
    assert len(heads) > 1
    assert [name for head in heads for name in head.split()[1:]] == [
        release.removeprefix("0.5") for release in sample.ALL_RELEASES
    ]


def test_names_in_brackets_and_markup_are_shown_as_they_are() -> None:
    run = sample.make_run_of_every_verdict()
    cell = next(cell for cell in run.cells if "[flashinfer]" in cell.guard)
    cell.verdict = Verdict.TOOTHLESS
    text = render_run(run, 300)
    assert "test_an_eager_row[flashinfer]" in text
    assert "[bold red]markup[/] [27460]" in text


def test_a_lifecycle_says_when_each_bug_lived_and_where_sources_and_running_differ() -> None:
    text = render_run(sample.make_lifecycle())
    assert find_line(text, "25015").split() == ["25015", *["BUG"] * 3, *["fix"] * 3, ".9-.11"]
    wide = find_line(render_run(sample.make_lifecycle(), 160), "27460")
    assert wide.endswith("has the bug   differs   has the fix 0.5.9 to 0.5.13 1 ≠")
    assert '27460 on 0.5.13: running shows "has the bug", the sources show "fixed"' in text
    assert "25 with the bug, 33 with the fix, 2 differs, 6 n/a" in text


def test_a_reason_is_told_once_for_all_its_cells() -> None:
    text = render_run(sample.make_run())
    assert text.count("the code is not in this release") == 1
    assert "n/a: 6 cells: the code is not in this release" in text


def test_a_picture_is_svg_that_fetches_nothing(tmp_path: Path) -> None:
    file = tmp_path / "some.where" / "a.b.svg"
    console = terminal_svg.make_recording_console()
    terminal.print_run(
        [sample.make_run_of_every_verdict(sample.one_release()), sample.make_lifecycle()], console
    )
    terminal_svg.save_svg(console, file)
    text = file.read_text()
    root = ElementTree.fromstring(text)
    assert root.tag.endswith("svg")
    assert "toothless" in text
    assert "@font-face" not in text
    assert "url(http" not in text
