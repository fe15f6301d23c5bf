"""A review says the same on a terminal, in Markdown, on its page and as SARIF, the worst first."""

from __future__ import annotations

import json
import re

import pytest
from rendering import to_text
from reviewed import ROWS, add_everything, make_run

from harness.store.pr.line_results import ChangedFunction, UnrunLine
from harness.store.pr.part_results import GuardChange, KernelAnswer, UnnoticedFault
from harness.store.pr.values import PrRun
from reports.pr import markdown, page, sarif, terminal


def render_terminal(run: PrRun) -> str:
    return to_text(terminal.print_run, run, 200)


def test_each_report_has_each_problem() -> None:
    run = add_everything(make_run())
    texts = [render_terminal(run), markdown.render_markdown(run), page.render_page(run)]
    wanted = ["takes back", "27460", "test_rows", "2 != 3", "from rows = 7 on", "1 of 3 differ"]
    wanted += ["KeyError: rows"]
    for text in texts:
        plain = text.replace("&#95;", "_").replace("Takes", "takes")
        assert [word for word in wanted if word not in plain] == []
        assert "<b>bold</b>" not in text or text is texts[0]
    assert len(run.problems) == 8
    assert not run.green


def test_a_run_without_problems_is_green_whatever_it_notes() -> None:
    run = add_everything(make_run())
    run.toggles, run.guards, run.findings, run.claims = [], [], [], []
    run.kernels[1].answer = KernelAnswer.ROUNDING
    run.kernels = run.kernels[1:]
    run.rehearsals = run.rehearsals[1:]  # and so may memory that grows
    assert run.green
    assert render_terminal(run).splitlines()[-2].startswith("green  ")


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("toggles", "takes back 1 fix: 27460"),
        ("guards", "breaks 1 guard: test_rows"),
        ("kernels", "m:j now accesses memory outside of its tensors"),
        ("findings", "1 new finding of the audit: m:k:5"),
        ("claims", "breaks llama of the zoo"),
        ("rehearsals", "breaks the deployment of tp8"),
    ],
)
def test_the_worst_is_the_headline(part: str, words: str) -> None:
    order = ["toggles", "guards", "kernels", "findings", "claims", "rehearsals"]
    run = add_everything(make_run())
    for better in order[: order.index(part)]:
        setattr(run, better, [])
    assert words in run.headline


def test_a_part_that_did_not_end_is_no_green() -> None:
    run = make_run()
    run.parts = run.parts[:2]
    assert run.problems == ["incomplete: not run to the end: zoo, kernels, rehearse, audit, faults"]


def test_sarif_has_each_problem_at_its_line() -> None:
    log = json.loads(sarif.render_sarif(add_everything(make_run())))["runs"][0]
    rules = {rule["id"] for rule in log["tool"]["driver"]["rules"]}
    found, without_line = {}, []
    for result in log["results"]:
        assert result["ruleId"] in rules
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] == ROWS
        line, kind = place["region"]["startLine"], (result["ruleId"], result["level"])
        if line == 1:
            without_line.append(kind)
        else:
            found[line] = kind
    assert found == {
        10: ("fix-taken-back", "error"),
        4: ("toggle-stale", "warning"),
        5: ("audit-finding", "error"),
        6: ("kernel-answers-differ", "warning"),
        7: ("kernel-answers-differ", "error"),
        8: ("fault-unnoticed", "note"),
    }
    assert without_line == [("guard-broken", "error"), *2 * [("model-broken", "error")]]


def make_functions(count: int) -> list[ChangedFunction]:
    ran = ["zoo olmo3", "zoo llama", "suites/a/t.py::test_rows"]
    functions = [
        ChangedFunction("m", f"count_{n}", ROWS, n, ["-  return 1", "+  return 2"], 1, ran)
        for n in range(1, count)
    ]
    functions[0].evidence = ["olmo3: answers of logits: moves by 0.3", "olmo3: starts fails now"]
    unrun = ChangedFunction("m", "other", ROWS, 90, ["+  return 3"], 2, nearest="a row is needed")
    unrun.unrun = [UnrunLine(91, "return 3")]
    return [unrun, *functions]


def test_the_first_screen_has_each_changed_function_the_worst_first() -> None:
    run = make_run()
    run.functions = make_functions(4)
    lines = render_terminal(run).splitlines()
    names = ["count_1", "other", "count_2", "count_3"]
    places = [next(n for n, line in enumerate(lines) if name in line) for name in names]
    assert places == sorted(places)
    text = "\n".join(lines)
    assert "zoo olmo3, zoo llama and 1 other" in text
    # The evidence stands below the lines that it comes from.
    assert text.index("+  return 2") < text.index("moves by 0.3")
    results = json.loads(sarif.render_sarif(run))["runs"][0]["results"]
    (note,) = [one for one in results if one["ruleId"] == "line-not-run"]
    assert note["locations"][0]["physicalLocation"]["region"]["startLine"] == 91


def test_a_comment_has_at_most_thirty_lines() -> None:
    run = add_everything(make_run())
    run.functions = make_functions(40)
    text = markdown.render_markdown(run)
    assert len(text.splitlines()) <= 30
    assert "moves by 0.3" in text
    assert "more on the page" in text


def test_what_is_not_run_is_amber() -> None:
    run = make_run()
    run.functions = make_functions(2)[:1]
    assert render_terminal(run).splitlines()[-2].startswith("amber  Not run: 1 of 2 changed lines")
    assert "AMBER" in markdown.render_markdown(run)
    assert 'class="summary is-amber"' in page.render_page(run)


def test_a_comment_fits_into_what_github_allows() -> None:
    run = add_everything(make_run())
    run.guards = [
        GuardChange(f"suites/a/t.py::test_{n}", "1", "proven", "broken", "passed", "failed",
                    "x" * 9000)
        for n in range(40)
    ]  # fmt: skip
    text = markdown.render_markdown(run)
    assert len(text) < 65_536
    assert text.startswith(markdown.MARKER)
    assert "takes back" in text.lower()


def test_faults_without_any_guard_are_one_row_for_their_file() -> None:
    """The review of moe-lora-slots had forty rows that said the same."""
    run = add_everything(make_run())
    nearness = "no guard runs a line of its module"
    run.faults += [
        UnnoticedFault(f"u{n}", "m:g", ROWS, n, f"mask {n}", "-a", "unreached", nearness=nearness)
        for n in range(40)
    ]
    text = render_terminal(run)
    assert text.count(nearness) == 1
    assert "40 faults, such as: mask 0" in text
    assert "f1" in text
    results = json.loads(sarif.render_sarif(run))["runs"][0]["results"]
    notes = [one["message"]["text"] for one in results if one["ruleId"] == "fault-unnoticed"]
    assert len(notes) == 2
    assert notes[1] == f"40 faults, such as: mask 0; {nearness}"


def test_a_change_that_no_guard_runs_is_said_to_be_unproven() -> None:
    text = render_terminal(make_run())
    assert "no guard runs a changed line: nothing is proven" in text
    assert "pass as it is" not in text


def test_nothing_to_do_is_said_in_words_and_not_in_zeros() -> None:
    text = render_terminal(make_run())
    assert "no kernel changed" in text
    assert "no fault can be made in the changed lines" in text
    assert not re.search(r"\b0 (changed|of 0 faults)", text)


def test_sarif_names_a_file_even_where_none_changed() -> None:
    """GitHub refuses a result without a place."""
    run = add_everything(make_run())
    run.files = []
    for result in json.loads(sarif.render_sarif(run))["runs"][0]["results"]:
        (place,) = result["locations"]
        assert place["physicalLocation"]["artifactLocation"]["uri"]
