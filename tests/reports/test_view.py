"""The view of a proof: the verdict of a box, the lifetime of a bug, the cell that counts."""

from __future__ import annotations

import msgspec
import pytest
import sample
from rendering import to_text

from harness.core.outcomes import Outcome, Verdict
from harness.core.wording import format_duration
from harness.store.prove.values import CELL_VERDICTS, CellResult, ProveRun
from reports.prove import bug_lifetime, markdown, marks, page, terminal, view
from reports.shared import formatting


def find_row(proof_view: view.ProofView, toggle: str) -> view.ToggleRow:
    return next(row for row in proof_view.rows if row.toggle.id == toggle)


def test_a_mark_is_good_if_its_verdict_is_and_shares_no_sign_with_a_bad_one() -> None:
    for verdict in CELL_VERDICTS:
        assert marks.MARKS[verdict.value].good == verdict.is_good, verdict
    glyphs = {is_good: {m.glyph for m in marks.MARKS.values() if m.good is is_good}
              for is_good in (True, False)}  # fmt: skip
    assert not glyphs[True] & glyphs[False]
    shorts = [mark.short for mark in marks.MARKS.values()]
    assert len(shorts) == len(set(shorts))


def test_a_box_shows_the_worst_of_its_guards() -> None:
    run = sample.make_run()
    cells = [c for c in run.cells if (c.toggle, c.release) == ("27460", "0.5.12")]
    assert len(cells) == 2
    cells[1].verdict = Verdict.TOOTHLESS
    box = find_row(view.make_view(run), "27460").boxes[3]
    assert box.mark == "toothless"
    assert box.counts == {"proven": 1, "toothless": 1}
    cells[0].verdict = None
    assert find_row(view.make_view(run), "27460").boxes[3].mark == "toothless"
    cells[1].verdict = Verdict.PROVEN
    assert find_row(view.make_view(run), "27460").boxes[3].mark == "missing"


def test_a_guard_that_is_not_applicable_does_not_hide_a_proof() -> None:
    run = sample.make_run()
    cells = [c for c in run.cells if (c.toggle, c.release) == ("27460", "0.5.12")]
    cells[0].verdict = Verdict.NA
    cells[0].sides = {
        name: sample.make_side(name, Outcome.NA, reach=0) for name in ("fixed", "buggy")
    }
    box = find_row(view.make_view(run), "27460").boxes[3]
    assert box.mark == "proven"
    assert (box.least_reach("fixed"), box.least_reach("buggy")) == (16, 12)


def test_a_box_without_guards_says_why_it_is_empty() -> None:
    run = sample.make_run()
    run.cells = [cell for cell in run.cells if cell.toggle not in ("26972", "25418-combine-int64")]
    run.releases[0].unguarded = ["26972"]
    proof_view = view.make_view(run)
    assert [box.mark for box in find_row(proof_view, "26972").boxes] == ["unguarded"] + [
        "not run"
    ] * 5
    absent = [box.mark for box in find_row(proof_view, "25418-combine-int64").boxes]
    assert absent == ["absent"] * 4 + ["not run"] * 2


def test_a_run_of_some_guards_shows_their_toggles_alone() -> None:
    run = sample.make_run()
    run.cells = [cell for cell in run.cells if cell.toggle == "27460"]
    assert [row.toggle.id for row in view.make_view(run).rows] == ["27460"]
    run.cells = []
    assert len(view.make_view(run).rows) > 1, "nothing ran: what could have"


def test_a_listed_toggle_without_a_guard_is_shown_with_its_reason_and_is_no_problem() -> None:
    run = sample.make_run()
    run.cells = [cell for cell in run.cells if cell.toggle != "26972"]
    before = run.problems
    run.releases[0].expected_unguarded = {"26972": "two processes show it"}
    proof_view = view.make_view(run)
    box = find_row(proof_view, "26972").boxes[0]
    assert (box.mark, box.expected_reason) == ("listed", "two processes show it")
    assert proof_view.expected_unguarded == {"two processes show it": ["26972"]}
    assert run.problems == before
    texts = page.render_page(run), markdown.render_markdown(run), to_text(terminal.print_run, run)
    for text in texts:
        assert "two processes show it" in text


def test_releases_are_columns_from_the_oldest_and_devices_apart() -> None:
    run = sample.make_run(11)
    run.releases.reverse()
    assert [column.label for column in view.make_view(run).columns] == sample.ALL_RELEASES
    both = view.make_view([sample.make_run(2), sample.make_run(2, device="cuda")])
    labels = ["0.5.9 cpu", "0.5.9 cuda", "0.5.10 cpu", "0.5.10 cuda"]
    assert [column.label for column in both.columns] == labels


def test_the_cell_of_the_later_run_counts_in_any_order() -> None:
    first = sample.make_run()
    first.cells[0].verdict = Verdict.BROKEN
    again = msgspec.structs.replace(
        first,
        id="again",
        started="2026-11-22T00:00:00+00:00",
        cells=[msgspec.structs.replace(first.cells[0], verdict=Verdict.PROVEN)],
    )
    assert not view.make_view(first).green
    for runs in ([first, again], [again, first]):
        proof_view = view.make_view(runs)
        assert proof_view.green
        assert len(proof_view.run.cells) == len(first.cells)
        assert [run.id for run in proof_view.runs] == [first.id, "again"]


def test_a_lifecycle_beside_a_prove_run_leaves_its_verdicts_alone() -> None:
    proof_view = view.make_view([sample.make_run(), sample.make_lifecycle()])
    assert proof_view.kind == "prove"
    assert proof_view.green
    assert {box.mark for row in proof_view.rows for box in row.boxes} == {"proven", "absent"}
    assert find_row(proof_view, "27460").boxes[4].as_is_cells[0].verdict is Verdict.DIFFERS
    assert find_row(proof_view, "27460").lifetime.contradictions


@pytest.mark.parametrize("kind", ["prove", "lifecycle"])
def test_a_lifetime_spans_the_releases_on_which_running_shows_the_bug(kind: str) -> None:
    run = sample.make_run() if kind == "prove" else sample.make_lifecycle()
    proof_view = view.make_view(run)
    lived = find_row(proof_view, "25418-sparse-prefill-switch").lifetime
    assert (lived.first_buggy, lived.last_buggy) == ("0.5.11", "0.5.12")
    assert [on.source_state for on in lived.releases] == ["absent"] * 2 + ["buggy"] * 2 + [
        "fixed"
    ] * 2
    assert [on.observed_state for on in lived.releases] == ["", ""] + ["buggy"] * 2 + ["fixed"] * 2
    assert not lived.contradictions
    assert find_row(proof_view, "kv-indices-size-check").lifetime.span == ""


def test_a_release_that_contradicts_its_sources_is_reported() -> None:
    lived = find_row(view.make_view(sample.make_lifecycle()), "27460").lifetime
    assert [on.release for on in lived.contradictions] == ["0.5.13"]
    text = bug_lifetime.describe_contradiction(lived.contradictions[0])
    assert text == 'running shows "has the bug", the sources show "fixed"'
    assert lived.last_buggy == "0.5.13"
    # A lifecycle's cell outweighs a toggled one, and a toothless guard changes nothing observed.
    run = sample.make_run()
    cells = {f"{c.toggle} {c.release}": c for c in reversed(run.cells)}
    cells["20606 0.5.13"].verdict = Verdict.BROKEN
    cells["20606 0.5.13"].sides = {"fixed": sample.make_failing_side("fixed")}
    cells["27460 0.5.9"].verdict = Verdict.TOOTHLESS
    cells["27460 0.5.9"].sides["buggy"] = sample.make_side("buggy", Outcome.PASSED)
    alone = view.make_view(run)
    contradictions = find_row(alone, "20606").lifetime.contradictions
    assert [on.release for on in contradictions] == ["0.5.13"]
    both = view.make_view([run, sample.make_lifecycle()])
    assert not find_row(both, "20606").lifetime.contradictions
    lived = find_row(alone, "27460").lifetime
    assert (lived.releases[0].observed_state, len(lived.contradictions)) == ("buggy", 0)


@pytest.mark.parametrize(
    ("state", "side", "outcome", "reach", "observed"),
    [
        ("fixed", "fixed", Outcome.PASSED, 3, "fixed"),
        ("buggy", "buggy", Outcome.FAILED, 3, "buggy"),
        ("fixed", "fixed", Outcome.FAILED, 3, "buggy"),
        ("buggy", "buggy", Outcome.SEGFAULT, 3, "buggy"),
        ("buggy", "buggy", Outcome.HANG, 3, ""),
        ("buggy", "buggy", Outcome.PASSED, 0, ""),
        ("buggy", "fixed", Outcome.PASSED, 16, ""),
    ],
)
def test_the_observed_state_is_that_of_the_unpatched_side(
    state: str, side: str, outcome: Outcome, reach: int, observed: str
) -> None:
    sides = {side: sample.make_side(side, outcome, reach=reach)}
    cell = CellResult("g", "t", "1", "cpu", state, sides=sides)
    assert bug_lifetime.derive_observed_state(cell) == observed


@pytest.mark.parametrize(
    ("state", "name", "outcome", "right"),
    [
        ("fixed", "fixed", Outcome.PASSED, True),
        ("fixed", "fixed", Outcome.FAILED, False),
        ("buggy", "fixed", Outcome.PASSED, True),
        ("fixed", "buggy", Outcome.FAILED, True),
        ("fixed", "buggy", Outcome.SEGFAULT, True),
        ("fixed", "buggy", Outcome.HANG, False),
        ("fixed", "buggy", Outcome.PASSED, False),
        ("buggy", "as is", Outcome.FAILED, True),
        ("buggy", "as is", Outcome.PASSED, False),
        ("fixed", "as is", Outcome.PASSED, True),
    ],
)
def test_a_side_is_expected_by_its_state_and_outcome(
    state: str, name: str, outcome: Outcome, right: bool
) -> None:
    assert (
        view.is_side_expected(
            CellResult("g", "t", "1", "cpu", state), sample.make_side(name, outcome)
        )
        is right
    )


def test_invisible_characters_become_signs_and_colours_are_removed() -> None:
    assert formatting.make_visible("a\x1b[1;31mred\x1b[0m\x00\x07b") == "ared\\x00\\x07b"
    assert formatting.make_visible("\u202eevil\ud800") == "\\u202eevil\\ud800"
    assert formatting.make_visible("one\r\ntwo\n\tthree") == "one\ntwo\n\tthree"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.004, "4 ms"),
        (0.42, "0.42 s"),
        (7.26, "7.3 s"),
        (73.2, "73 s"),
        (130, "2 min 10 s"),
        (7384, "2 h 3 min"),
    ],
)
def test_durations_have_two_units_at_most(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_an_empty_run_is_red_in_each_report_and_has_nothing_to_show() -> None:
    for proof_view in (view.make_view(sample.make_empty_run()), view.make_view([])):
        assert not proof_view.green
        assert proof_view.rows == ()
    assert view.make_view(ProveRun(id="x", kind="lifecycle", started="")).kind == "lifecycle"
    run = sample.make_empty_run()
    assert markdown.render_markdown(run).startswith("## ✗ Guard proof: RED")
    text = to_text(terminal.print_run, run)
    assert "no cells, on no release, in 0 s: red" in text
    assert "no guard applied: nothing is proven" in text
