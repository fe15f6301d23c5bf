"""What an audit says of lines that rehearsed deployments reach, in all its forms."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from rehearsals import (
    COMMAND,
    POSSIBLE,
    REACHED,
    RUN,
    SOURCE,
    list_headline,
    make_finding,
    make_run,
)
from rich.console import Console

from harness.cli import guard_runs
from harness.cli.audit import execution, ranking
from harness.cli.rehearse import command as rehearsal
from harness.core import paths
from harness.releases.source_trees import FolderSourceTree
from harness.runs.audit.deployment_ranks import make_ranks
from harness.runs.audit.release_audit import ReleaseAudit
from harness.store.database import Store
from harness.store.rehearse.table import RehearsalTable
from harness.store.rehearse.values import (
    INT32_LIMIT,
    DeploymentResult,
    FindingRank,
    RehearsalRun,
    RehearsedPhase,
)
from harness.workers.release_target import ReleaseTarget
from reports.audit import fault_words, markdown, page, sarif, terminal, upstream

KINDS = list(fault_words.FAULT_WORDS)


def test_the_headline_has_what_arithmetic_does_not_find(ranked_audit: ReleaseAudit) -> None:
    assert list_headline(ranked_audit) == [("reachable", 4), ("near", 5)]
    assert [one.line for one in ranked_audit.possible] == [6]
    assert Path(ranked_audit.headline[0].file).is_file()


def test_what_is_possible_alone_is_folded_away_and_counted(ranked_audit: ReleaseAudit) -> None:
    console = Console(width=200, record=True, file=None)
    with console.capture() as captured:
        terminal.print_run(ranked_audit, console, show_all=False)
    text = captured.get()
    assert "says" in text
    assert COMMAND in text
    assert POSSIBLE not in text
    assert "1 reachable and 1 near in 1 deployments of 0.5.23" in text
    assert "possible by arithmetic alone: 1 finding," in text
    with console.capture() as captured:
        terminal.print_run(ranked_audit, console, show_all=False, lists_possible=True)
    assert POSSIBLE in captured.get()  # for targets, which are asked for by name


def test_sarif_has_every_line_once_with_the_level_of_its_rank(ranked_audit: ReleaseAudit) -> None:
    results = json.loads(sarif.render_sarif(ranked_audit))["runs"][0]["results"]
    places = [one["locations"][0]["physicalLocation"] for one in results]
    assert [one["region"]["startLine"] for one in places] == [4, 5, 6]
    assert [one["level"] for one in results] == ["error", "warning", "note"]
    assert {one["artifactLocation"]["uri"] for one in places} == {
        "python/sglang/srt/layers/walk.py"
    }
    assert COMMAND in results[1]["message"]["text"]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (1, ("deployment reaches it", "lite", COMMAND, "`row.to(tl.int64)`")),
        (2, ("deployment comes near to it", "lite", COMMAND, "`row.to(tl.int64)`")),
        (3, ("Smallest input", POSSIBLE)),
    ],
)
def test_the_text_for_upstream_names_the_deployments_and_their_command(
    ranked_audit: ReleaseAudit,
    number: int,
    words: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert execution._print_upstream_report(ranked_audit, number) == 0
    text = capsys.readouterr().out
    assert [word for word in words if word not in text] == []
    assert ("Smallest input" in text) == (number == 3)  # arithmetic has guessed sizes


def test_the_page_and_markdown_have_the_headline_first(ranked_audit: ReleaseAudit) -> None:
    for text in (page.render_page(ranked_audit, "abc"), markdown.render_markdown(ranked_audit)):
        assert text.index("says tl.load") < text.index("says tl.store")
        assert text.index("What deployments reach") < text.index("Possible by arithmetic")


def test_without_any_rehearsal_each_finding_by_arithmetic_counts(
    audit: ReleaseAudit,
    stored_runs: dict[str, RehearsalRun],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(ranking, "Store", lambda: Store(tmp_path / "runs.sqlite"))
    for unranked in (
        ranking.rank_release(audit, rehearses=False),
        ranking.rank_sources(audit, lambda release: set()),
        ranking.rank_difference(audit, "0.5.23", "0.5.18"),
    ):
        assert (unranked.ranks, unranked.is_red, len(unranked.possible)) == (None, True, 2)


def test_a_release_is_rehearsed_once_for_each_state_of_our_code(
    audit: ReleaseAudit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = Store(tmp_path / "runs.sqlite")
    rehearsed, code = [], "one"

    def rehearse(*_: object) -> RehearsalRun:
        rehearsed.append(code)
        run = make_run(*RUN.deployments[0].findings)
        run = msgspec.structs.replace(run, id=f"run-{len(rehearsed)}", code=code, planned=["lite"])
        RehearsalTable(store).begin(run)
        RehearsalTable(store).save_result(run.id, 0, run.deployments[0])
        RehearsalTable(store).save(run)
        return run

    target = ReleaseTarget("0.5.23", Path("python"), FolderSourceTree(tmp_path, "0.5.23"))
    monkeypatch.setattr(ranking, "_find_target", lambda release: target)
    monkeypatch.setattr(ranking, "Store", lambda: store)
    monkeypatch.setattr(ranking, "read_deployments", lambda: {"lite": None})
    monkeypatch.setattr(guard_runs, "digest_lane_code", lambda *_: code)
    monkeypatch.setattr(rehearsal, "rehearse_release", rehearse)
    monkeypatch.setattr(rehearsal, "list_deployments", lambda *_: [])
    for _ in range(2):
        ranked = ranking.rank_release(audit, rehearses=True)
        assert list_headline(ranked)[0] == ("reachable", 4)
    assert rehearsed == ["one"]
    code = "two"
    ranking.rank_release(audit, rehearses=True)
    assert rehearsed == ["one", "two"]
    monkeypatch.setattr(ranking, "_find_target", lambda release: None)  # not installed any more
    assert list_headline(ranking.rank_release(audit, rehearses=True))[0] == ("reachable", 4)
    assert rehearsed == ["one", "two"]


def test_only_deployments_that_started_and_finished_count(audit: ReleaseAudit) -> None:
    run = make_run()
    run.planned = ["lite", "refused", "early"]
    refused = DeploymentResult("refused", "m", "H200", 8, refusal="ValueError: no", card_memory=9)
    early = DeploymentResult("early", "m", "H200", 8)
    early.phases = [RehearsedPhase("decode", "", failure="KeyError: 'rows'")]
    run.deployments += [refused, early]
    ranks = make_ranks(run)
    assert ranks.deployments == 1
    assert ranks.uncounted == (
        "early: decode ended early: KeyError: 'rows'",
        "refused: SGLang refuses it: ValueError: no",
    )
    ranked = replace(audit, ranks=ranks)
    assert not ranked.is_red  # they are named
    assert "refused: SGLang refuses it: ValueError: no" in markdown.render_markdown(ranked)
    assert "refused: SGLang refuses it: ValueError: no" in page.render_page(ranked, "abc")
    run.deployments = [refused]
    run.planned = ["refused"]
    assert replace(audit, ranks=make_ranks(run)).is_red  # none counts
    run.planned = ["refused", "lite"]
    assert "lite: it was not run" in make_ranks(run).uncounted


def test_an_audit_by_deployments_that_were_cut_short_is_not_green(
    audit: ReleaseAudit, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run()
    words = "it did not end within 600 s"
    run.deployments.append(DeploymentResult("slow", "m", "H200", 8, refusal=words))
    ranked = replace(audit, ranks=make_ranks(run))
    assert ranked.is_red
    terminal.print_run(ranked, Console(width=200), show_all=False)
    text = capsys.readouterr().out
    assert f"not counted: slow: {words}" in text
    assert "in 1 deployments of 0.5.23" in text


def test_a_finding_is_of_the_line_that_a_deployment_reaches_and_of_no_equal_one(
    ranked_audit: ReleaseAudit,
) -> None:
    reached = ranked_audit.findings[0]
    assert ranked_audit.rank(reached) is FindingRank.REACHABLE
    for other in (
        replace(reached, module="copy"),
        replace(reached, line=40, access_line=40),
    ):
        assert ranked_audit.rank(other) is FindingRank.POSSIBLE


@pytest.mark.parametrize("kind", [*KINDS[2:], "Other"])
def test_what_is_no_overflow_has_a_rule_and_a_sentence_of_its_own(
    audit: ReleaseAudit, kind: str
) -> None:
    run = make_run(make_finding(REACHED, FindingRank.REACHABLE, line=4, kind=kind))
    ranked = replace(audit, ranks=make_ranks(run))
    [log] = json.loads(sarif.render_sarif(ranked))["runs"]
    words = fault_words.find_fault_words(kind)
    assert log["results"][0]["ruleId"] == words.rule
    rules = [rule["id"] for rule in log["tool"]["driver"]["rules"]]
    assert len(set(rules)) == len(rules) == 7
    assert set(rules) >= {one["ruleId"] for one in log["results"]}
    assert words.rule not in ("overflow", "overruns")
    title = upstream.render_deployment_report(ranked.headline[0], "0.5.23").splitlines()[0]
    assert title == f"# `walk`: {words.title}"
    assert "goes past" not in title
    assert len(ranked.possible) == 2  # arithmetic says something else of that line


def test_the_words_of_a_fault_are_of_kinds_that_checks_report() -> None:
    text = (paths.HARNESS_FOLDER / "sanitizer" / "violations" / "exceptions.py").read_text()
    assert [kind for kind in KINDS if f"class {kind}(Violation):" not in text] == []
    assert {fault_words.find_fault_words(kind).rule for kind in KINDS} >= {"overflow", "overruns"}


def test_equal_lines_of_a_kernel_have_fingerprints_of_their_own(audit: ReleaseAudit) -> None:
    file = Path(audit.kernels[0].file).with_name("twins.py")
    file.write_text(f"{SOURCE}    {REACHED}\n{SOURCE}")
    [kernel] = audit.kernels
    first = kernel.findings[0]
    lines = [4, 7, 11]  # the third is the first of its function

    def make_prints(numbers: list[int]) -> list[str]:
        twins = tuple(
            replace(first, file=str(file), line=number, access_line=number) for number in numbers
        )
        log = sarif.render_sarif(replace(audit, kernels=(replace(kernel, findings=twins),)))
        results = json.loads(log)["runs"][0]["results"]
        return [one["partialFingerprints"]["kernelLine/v1"] for one in results]

    prints = make_prints(lines)
    assert prints[0] != prints[1]
    assert prints[0] == prints[2]
    assert make_prints([7]) == [prints[1]]  # whether or not the other is listed


def test_the_same_line_at_two_places_is_ranked_by_the_nearer(ranked_audit: ReleaseAudit) -> None:
    assert ranked_audit.ranks is not None
    twin = make_ranks(
        make_run(
            make_finding(REACHED, FindingRank.NEAR, extent=INT32_LIMIT // 2, line=40),
            make_finding(REACHED, FindingRank.REACHABLE, line=4),
        )
    )
    reached, possible = ranked_audit.findings
    assert twin.rank(reached) is FindingRank.REACHABLE
    assert twin.rank(replace(reached, line=40, access_line=40)) is FindingRank.NEAR
    assert twin.rank(possible) is FindingRank.POSSIBLE


def test_a_near_address_is_named_by_its_access(ranked_audit: ReleaseAudit) -> None:
    possible = ranked_audit.possible[0]
    before_the_access = replace(possible, text="place = row * stride", line=3, access_line=5)
    assert ranked_audit.rank(before_the_access) is FindingRank.NEAR
    assert ranked_audit.rank(replace(before_the_access, access_line=6)) is FindingRank.POSSIBLE
