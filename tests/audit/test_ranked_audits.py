"""What an audit says of lines that rehearsed deployments reach, in all its forms."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from harness.cli.audit import execution, ranking
from harness.releases.managed_releases import get_newest_release
from harness.runs.audit.deployment_ranks import make_ranks
from harness.runs.audit.findings import AuditFinding, KernelAudit, KernelVerdict
from harness.runs.audit.release_audit import ReleaseAudit
from harness.store.rehearse.values import (
    INT32_LIMIT,
    DeploymentResult,
    FindingRank,
    RehearsalFinding,
    RehearsalRun,
)
from reports.audit import markdown, page, sarif, terminal

SOURCE = """
def walk(x, stride):
    row = tl.program_id(0)
    tl.load(x + row * stride)
    tl.store(x + row * stride + 1)
    tl.load(x + row * stride + 2)
"""
REACHED, NEAR, POSSIBLE = (line.strip() for line in SOURCE.splitlines()[3:6])
COMMAND = "./unfix rehearse lite -- --context-length 9"


def make_finding(
    text: str, rank: FindingRank, *, extent: int = 0, line: int = 0, threshold: str = COMMAND
) -> RehearsalFinding:
    return RehearsalFinding(
        *("IntegerOverflow", "decode", "m:walk", f"says {text}", "srt/layers/walk.py"),
        *(line, text),
        rank=rank,
        threshold=threshold,
        extent=extent,
    )


def make_run(*findings: RehearsalFinding, release: str = "0.5.23") -> RehearsalRun:
    run = RehearsalRun(id="r", started="", release=release, status="finished")
    run.deployments = [
        DeploymentResult("lite", "deepseek-v2-lite", "H200", 8, findings=list(findings))
    ]
    return run


RUN = make_run(
    make_finding(NEAR, FindingRank.NEAR, extent=INT32_LIMIT // 2, line=5),
    make_finding(REACHED, FindingRank.REACHABLE, line=4),
)


@pytest.fixture
def audit(tmp_path: Path) -> ReleaseAudit:
    """An audit whose arithmetic finds what deployments reach and what is possible, not the near."""
    file = tmp_path / "sglang" / "srt" / "layers" / "walk.py"
    file.parent.mkdir(parents=True)
    file.write_text(SOURCE)
    words = "module element access quantity shape grows model arithmetic launched"
    texts = dict.fromkeys(words.split(), "")
    findings = tuple(
        AuditFinding(
            kernel="walk",
            file=str(file),
            line=line,
            text=text,
            access_line=line,
            threshold=1,
            largest=10,
            value=1,
            reaches=(),
            confirmed="confirmed",
            **texts,  # type: ignore[arg-type]
        )
        for line, text in ((4, REACHED), (6, POSSIBLE))
    )
    kernel = KernelAudit("walk", "m", str(file), 2, KernelVerdict.OVERFLOWS, 3, findings)
    return ReleaseAudit("0.5.23", (kernel,), "", 1)


@pytest.fixture
def ranked_audit(audit: ReleaseAudit, stored_runs: dict[str, RehearsalRun]) -> ReleaseAudit:
    stored_runs["0.5.23"] = RUN
    return ranking.rank_release(audit, rehearses=False)


@pytest.fixture
def stored_runs(monkeypatch: pytest.MonkeyPatch) -> dict[str, RehearsalRun]:
    """The rehearsals that the store has, by release."""
    runs: dict[str, RehearsalRun] = {}
    monkeypatch.setattr(ranking, "_find_rehearsal", runs.get)
    return runs


def list_headline(audit: ReleaseAudit) -> list[tuple[str, int]]:
    return [(str(one.rank), one.line) for one in audit.headline]


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
    assert "possible by arithmetic alone: 1 findings" in text
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
        (1, ("deployment does it", "lite", COMMAND, "`row.to(tl.int64)`")),
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


def test_a_difference_counts_what_the_earlier_release_did_not_reach(
    audit: ReleaseAudit, stored_runs: dict[str, RehearsalRun]
) -> None:
    stored_runs["0.5.23"] = RUN
    stored_runs["0.5.18"] = make_run(make_finding(REACHED, FindingRank.REACHABLE, line=40))
    assert list_headline(ranking.rank_difference(audit, "0.5.23", "0.5.18")) == [("near", 5)]
    stored_runs["0.5.18"] = make_run(
        make_finding(REACHED, FindingRank.NEAR, extent=INT32_LIMIT // 2)
    )
    new = ranking.rank_difference(audit, "0.5.23", "0.5.18")
    assert list_headline(new) == [("reachable", 4), ("near", 5)]
    stored_runs["0.5.18"] = RUN
    assert not ranking.rank_difference(audit, "0.5.23", "0.5.18").is_red


def test_without_the_earlier_rehearsal_a_difference_counts_kernels_that_changed(
    audit: ReleaseAudit, stored_runs: dict[str, RehearsalRun]
) -> None:
    stored_runs["0.5.23"] = RUN
    assert len(ranking.rank_difference(audit, "0.5.23", "0.5.18").headline) == 2
    unchanged = replace(audit, kernels=())
    assert not ranking.rank_difference(unchanged, "0.5.23", "0.5.18").is_red


def test_other_sources_are_ranked_in_the_lines_that_they_still_have(
    audit: ReleaseAudit, stored_runs: dict[str, RehearsalRun]
) -> None:
    newest = get_newest_release().name
    stored_runs[newest] = make_run(
        make_finding(NEAR, FindingRank.NEAR, extent=INT32_LIMIT // 2, line=905),
        make_finding("tl.load(x + row * gone)", FindingRank.REACHABLE, line=904),
        release=newest,
    )
    assert list_headline(ranking.rank_sources(audit)) == [("near", 5)]
    assert list_headline(ranking.rank_difference(audit, "", "main")) == [("near", 5)]


def test_without_any_rehearsal_each_finding_by_arithmetic_counts(
    audit: ReleaseAudit, stored_runs: dict[str, RehearsalRun]
) -> None:
    for unranked in (
        ranking.rank_release(audit, rehearses=False),
        ranking.rank_sources(audit),
        ranking.rank_difference(audit, "0.5.23", "0.5.18"),
    ):
        assert (unranked.ranks, unranked.is_red, len(unranked.possible)) == (None, True, 2)


def test_a_release_is_rehearsed_once(
    audit: ReleaseAudit, stored_runs: dict[str, RehearsalRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranking, "_find_target", lambda release: "its target")
    monkeypatch.setattr(ranking, "_rehearse_once", lambda target, jobs: RUN)
    assert list_headline(ranking.rank_release(audit, rehearses=True))[0] == ("reachable", 4)
    monkeypatch.setattr(ranking, "_find_target", lambda release: None)  # not installed
    assert ranking.rank_release(audit, rehearses=True).ranks is None


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
