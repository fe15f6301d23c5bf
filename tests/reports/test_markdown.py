"""A proof as Markdown for the summary of a job."""

from __future__ import annotations

import re

import sample

from harness.core.outcomes import Verdict
from reports.prove import markdown
from reports.shared.markdown import render_code_block


def read_table(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_a_green_run_is_a_heading_counts_and_a_table() -> None:
    text = markdown.render_markdown(sample.make_run())
    assert text.startswith("## ✓ Guard proof: green\n")
    assert "**60 proven, 6 n/a** on SGLang 6 releases from 0.5.9 to 0.5.14, cpu, in 73 s." in text
    head, _, *rows = read_table(text)
    assert head == ["toggle", *sample.RELEASES]
    assert ["<code>27460</code>", *["✓"] * 6] in rows
    assert "details" in text.lower()
    assert "--failed" not in text


def test_what_is_not_proven_is_folded_with_its_example_and_its_replay() -> None:
    run = sample.make_run()
    cell = next(cell for cell in run.cells if cell.verdict is Verdict.PROVEN)
    cell.verdict = Verdict.BROKEN
    cell.sides = {"fixed": sample.make_failing_side("fixed")}
    text = markdown.render_markdown(run)
    assert text.startswith("## ✗ Guard proof: RED\n")
    folded = text[text.index("<details><summary>✕ <b>broken</b>") :]
    assert "\n".join(sample.EXAMPLE) in folded
    assert f"```\n{cell.sides['fixed'].replay}\n```" in folded
    assert "kv&#95;indices&#91;1, 0&#93;, outside of what program" in folded
    assert text.rstrip().endswith("`unfix prove --failed`")


def test_every_row_of_the_table_has_as_many_cells_as_its_head() -> None:
    run = sample.make_run_of_every_verdict()
    run.toggles[0].id = "a|b`c"
    for cell in run.cells:
        cell.toggle = cell.toggle.replace("27460", "a|b`c")
    rows = read_table(markdown.render_markdown(run))
    assert len({len(row) for row in rows}) == 1
    assert any("a&#124;b&#96;c" in row[0] for row in rows)


def test_nothing_from_a_run_is_read_as_html() -> None:
    text = markdown.render_markdown(sample.make_run_of_every_verdict())
    outside = re.sub(r"^(`{3,})\n.*?\n\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    assert outside != text
    tags = {tag.lower() for tag in re.findall(r"</?([a-zA-Z]+)", outside)}
    assert tags == {"details", "summary", "b", "code"}
    assert "<b>bold</b>" not in outside
    assert "\x1b" not in text


def test_a_fence_is_longer_than_any_in_the_text() -> None:
    assert render_code_block("a\n````\nb").startswith("`````\n")


def test_a_text_too_long_for_a_job_is_cut_and_says_so() -> None:
    run = sample.make_large_run()
    for cell in run.cells:
        cell.verdict = Verdict.BROKEN
        cell.sides = {"fixed": sample.make_failing_side("fixed", example=["x" * 2000])}
    text = markdown.render_markdown(run)
    assert len(text.encode()) < 1_000_000
    assert re.search(r"… and \d+ more cells that are not proven\.", text)


def test_a_lifecycle_names_its_contradictions() -> None:
    text = markdown.render_markdown(sample.make_lifecycle())
    assert text.startswith("## ✗ Lifetimes of the bugs: RED")
    assert '≠ <code>27460</code> on 0.5.13: running shows "has the bug", the sources show' in text
    assert "0.5.9 to 0.5.11" in text
