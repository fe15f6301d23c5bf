"""What is new in other sources or in a later release, by rehearsals of releases."""

from __future__ import annotations

import json
import linecache
from dataclasses import replace
from pathlib import Path

import pytest
from rehearsals import (
    ALL_KEYS,
    NEAR,
    POSSIBLE,
    REACHED,
    RUN,
    SOURCE,
    list_headline,
    make_finding,
    make_run,
)
from rich.console import Console

from harness.cli.audit import execution, ranking
from harness.releases import managed_releases
from harness.releases.managed_releases import Release, get_newest_release
from harness.runs.audit.findings import FindingKey
from harness.runs.audit.release_audit import ReleaseAudit
from harness.store.rehearse.values import (
    INT32_LIMIT,
    FindingRank,
    RehearsalFinding,
    RehearsalRun,
)
from reports.audit import sarif, terminal, view


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """The file of the kernel in an earlier tree, `before`."""
    file = tmp_path / "before" / "sglang" / "srt" / "layers" / "walk.py"
    file.parent.mkdir(parents=True)
    file.write_text(SOURCE)
    return file


def make_reached_finding(line: int, kernel: str = "m:walk") -> RehearsalFinding:
    return make_finding(REACHED, FindingRank.REACHABLE, line=line, kernel=kernel)


BOTH = RUN.deployments[0].findings
NEAR_BEFORE = make_finding(REACHED, FindingRank.NEAR, extent=INT32_LIMIT // 2)
FUSED = make_finding("x", FindingRank.REACHABLE, line=4, kernel="srt.moe.experts:fused")
COPIED = make_reached_finding(4, "copy:walk")


# What the later release reaches, what the earlier one reached, if it was rehearsed, the targets of
# the audit, whether the kernels changed, and the headline.
@pytest.mark.parametrize(
    ("later", "earlier", "targets", "changed", "headline"),
    [
        (BOTH, [make_reached_finding(40)], (), True, ["m:walk 5"]),
        (BOTH, [NEAR_BEFORE], (), True, ["m:walk 4", "m:walk 5"]),
        (BOTH, BOTH, (), True, []),
        # Without the earlier rehearsal, kernels that changed count.
        (BOTH, None, (), True, ["m:walk 4", "m:walk 5"]),
        (BOTH, None, (), False, []),
        # Only kernels of the targets count.
        ([FUSED, *BOTH], [], (), True, ["m:walk 4", "m:walk 5", "srt.moe.experts:fused 4"]),
        ([FUSED, *BOTH], [], ("walk",), True, ["m:walk 4", "m:walk 5"]),
        ([FUSED, *BOTH], [], ("moe",), True, ["srt.moe.experts:fused 4"]),
        ([FUSED, *BOTH], [], ("dsv4",), True, []),
        # An equal line of another module or another place is new, and one that moved is not.
        ([make_reached_finding(4), COPIED], [make_reached_finding(4)], (), False, ["copy:walk 4"]),
        ([COPIED], [make_reached_finding(4)], (), False, []),
        (
            [make_reached_finding(4), make_reached_finding(14)],
            [make_reached_finding(4)],
            (),
            False,
            ["m:walk 14", "m:walk 4"],
        ),
        (
            [make_reached_finding(4), make_reached_finding(14)],
            [make_reached_finding(4), make_reached_finding(14)],
            (),
            False,
            [],
        ),
        (
            [make_reached_finding(4)],
            [make_reached_finding(4), make_reached_finding(14)],
            (),
            False,
            [],
        ),
    ],
)
def test_a_difference_counts_what_the_earlier_release_did_not_reach(
    audit: ReleaseAudit,
    stored_runs: dict[str, RehearsalRun],
    later: list[RehearsalFinding],
    earlier: list[RehearsalFinding] | None,
    targets: tuple[str, ...],
    changed: bool,
    headline: list[str],
) -> None:
    stored_runs["0.5.23"] = make_run(*later)
    if earlier is not None:
        stored_runs["0.5.18"] = make_run(*earlier)
    audited = audit if changed else replace(audit, kernels=())
    ranked = ranking.rank_difference(audited, "0.5.23", "0.5.18", targets)
    assert sorted(f"{one.module}:{one.kernel} {one.line}" for one in ranked.headline) == headline
    assert ranked.is_red is bool(headline)


def test_without_the_earlier_rehearsal_an_old_line_of_a_changed_kernel_does_not_count(
    audit: ReleaseAudit, stored_runs: dict[str, RehearsalRun], tmp_path: Path, earlier: Path
) -> None:
    """Arithmetic finds the reached line anew; the near one stood there before."""
    stored_runs["0.5.23"] = RUN

    def rank(source: str) -> list[tuple[str, int]]:
        earlier.write_text(source)
        ranked = ranking.rank_difference(
            audit, "0.5.23", "0.5.18", find_sources=lambda name: tmp_path / "before"
        )
        return list_headline(ranked)

    assert rank(SOURCE.replace(POSSIBLE, "pass")) == [("reachable", 4)]
    assert rank(SOURCE.replace(NEAR, "pass")) == [("reachable", 4), ("near", 5)]


def test_other_sources_are_ranked_in_the_lines_that_they_still_have(
    audit: ReleaseAudit, stored_runs: dict[str, RehearsalRun]
) -> None:
    newest = get_newest_release().name
    stored_runs[newest] = make_run(
        make_finding(NEAR, FindingRank.NEAR, extent=INT32_LIMIT // 2, line=905),
        make_finding("tl.load(x + row * gone)", FindingRank.REACHABLE, line=904),
        release=newest,
    )
    ranked = ranking.rank_sources(audit, lambda release: set())
    assert list_headline(ranked) == [("near", 5)]
    assert [one.line for one in ranked.possible] == [4, 6]
    assert ranked.red_findings == []


def test_what_other_sources_add_counts_though_no_deployment_reaches_it(
    audit: ReleaseAudit, stored_runs: dict[str, RehearsalRun], capsys: pytest.CaptureFixture[str]
) -> None:
    newest = get_newest_release().name
    stored_runs[newest] = make_run(release=newest)
    added = audit.findings[1].key
    releases = []

    def find_new(release: str) -> set[FindingKey]:
        releases.append(release)
        return {added}

    ranked = ranking.rank_sources(audit, find_new)
    assert releases == [newest]
    assert (ranked.headline, ranked.is_red) == ((), True)
    assert [one.key for one in ranked.red_findings] == [added]
    assert ranked.possible[0].key == added
    terminal.print_run(ranked, Console(width=200), show_all=False)
    text = capsys.readouterr().out
    assert POSSIBLE in text
    assert REACHED not in text
    assert "possible by arithmetic alone: 2 findings, 1 of them new, which counts" in text
    results = json.loads(sarif.render_sarif(ranked))["runs"][0]["results"]
    assert [one["level"] for one in results] == ["error", "note"]
    assert not ranking.rank_sources(audit, lambda release: set()).is_red


def test_a_difference_of_sources_is_red_for_what_the_earlier_tree_lacks(
    audit: ReleaseAudit, stored_runs: dict[str, RehearsalRun], tmp_path: Path, earlier: Path
) -> None:
    """The audit of a difference has the new findings alone."""
    newest = get_newest_release().name
    near = make_finding(NEAR, FindingRank.NEAR, extent=INT32_LIMIT // 2, line=5)
    stored_runs[newest] = make_run(near, release=newest)
    before = tmp_path / "before"
    edited = SOURCE.replace("row = tl.program_id(0)", "row = tl.program_id(1)")
    earlier.write_text(edited)
    assert ranking.rank_new_sources(audit, before).red_findings == audit.possible
    unchanged = replace(audit, kernels=(audit.kernels[0].drop_findings(ALL_KEYS),))
    assert not ranking.rank_new_sources(unchanged, before).is_red  # the near line is an old one
    for lacking in (
        edited.replace(NEAR, "pass"),
        edited.replace("def walk", "def run"),  # another kernel has the line
        edited.replace(NEAR, "pass") + edited.replace("def walk", "def run"),
    ):
        earlier.write_text(lacking)
        assert list_headline(ranking.rank_new_sources(unchanged, before)) == [("near", 5)]
    earlier.rename(earlier.with_name("moved.py"))
    earlier.with_name("moved.py").write_text(edited)
    assert not ranking.rank_new_sources(unchanged, before).is_red


def test_an_old_line_that_overflows_anew_stays_in_a_difference(
    audit: ReleaseAudit, stored_runs: dict[str, RehearsalRun], tmp_path: Path, earlier: Path
) -> None:
    """The earlier tree has the text, and its numbers had 64 bits there: so arithmetic says."""
    newest = get_newest_release().name
    reached = make_finding(REACHED, FindingRank.REACHABLE, line=4)
    stored_runs[newest] = make_run(reached, release=newest)
    ranked = ranking.rank_new_sources(audit, tmp_path / "before")
    assert list_headline(ranked) == [("reachable", 4)]


def test_a_kernel_that_moved_keeps_its_ranks_and_one_of_its_name_has_none(
    audit: ReleaseAudit, stored_runs: dict[str, RehearsalRun]
) -> None:
    newest = get_newest_release().name
    reached = make_finding(REACHED, FindingRank.REACHABLE, line=4)
    other = make_finding("tl.load(x)", FindingRank.NEAR, extent=INT32_LIMIT // 2, line=9)
    stored_runs[newest] = make_run(reached, other, release=newest)
    kernel = audit.kernels[0]
    found = tuple(replace(finding, module="moved") for finding in kernel.findings)
    moved = replace(audit, kernels=(replace(kernel, module="moved", findings=found),))
    ranked = ranking.rank_sources(moved, lambda release: set())
    assert [(one.module, one.line) for one in ranked.headline] == [("moved", 4)]
    assert [one.line for one in ranked.possible] == [6]
    launched = make_finding("tl.load(y)", FindingRank.REACHABLE, line=2, kernel="moved:walk")
    stored_runs[newest] = make_run(reached, launched, release=newest)  # it has ranks of its own
    assert ranking.rank_sources(moved, lambda release: set()).headline == ()


def test_an_audit_of_some_kernels_has_none_of_their_name_in_other_modules(
    audit: ReleaseAudit, stored_runs: dict[str, RehearsalRun]
) -> None:
    copied = make_finding(REACHED, FindingRank.REACHABLE, line=4, kernel="copy:walk")
    stored_runs["0.5.23"] = make_run(copied)
    assert ranking.rank_release(audit, rehearses=False).headline == ()
    assert ranking.rank_difference(audit, "0.5.23", "0.5.18").headline == ()


def test_a_line_that_the_earlier_tree_has_less_often_is_new(
    audit: ReleaseAudit, stored_runs: dict[str, RehearsalRun], tmp_path: Path, earlier: Path
) -> None:
    newest = get_newest_release().name
    near = make_finding(NEAR, FindingRank.NEAR, extent=INT32_LIMIT // 2, line=5)
    stored_runs[newest] = make_run(near, release=newest)
    file = Path(audit.kernels[0].file)
    file.write_text(f"{SOURCE}    {NEAR}\n")
    linecache.checkcache(str(file))
    view.read_source_lines.cache_clear()
    unchanged = replace(audit, kernels=(audit.kernels[0].drop_findings(ALL_KEYS),))
    new = ranking.rank_new_sources(unchanged, tmp_path / "before")
    assert list_headline(new) == [("near", 5)]


def test_equal_lines_have_a_place_each_in_other_sources(
    audit: ReleaseAudit, stored_runs: dict[str, RehearsalRun]
) -> None:
    file = Path(audit.kernels[0].file).with_name("shifted.py")
    file.write_text("\n" * 20 + SOURCE.replace(NEAR, REACHED))
    newest = get_newest_release().name
    stored_runs[newest] = make_run(
        make_finding(REACHED, FindingRank.REACHABLE, line=4),
        make_finding(REACHED, FindingRank.REACHABLE, line=5),
        make_finding(REACHED, FindingRank.REACHABLE, line=6),
        release=newest,
    )
    shifted = replace(audit, kernels=(replace(audit.kernels[0], file=str(file), findings=()),))
    ranked = ranking.rank_sources(shifted, lambda release: set())
    assert [one.line for one in ranked.headline] == [24, 25]  # it has two of the three


@pytest.mark.parametrize(
    ("label", "headline"),
    [
        ("sglang", [("near", 5)]),
        ("main..sglang", [("near", 5)]),
        ("0.5.18..0.5.23", [("reachable", 4)]),
        ("0.5.23", [("reachable", 4)]),
    ],
)
def test_a_record_is_ranked_by_what_it_audited(
    audit: ReleaseAudit,
    stored_runs: dict[str, RehearsalRun],
    monkeypatch: pytest.MonkeyPatch,
    label: str,
    headline: list[tuple[str, int]],
) -> None:
    near = make_finding(NEAR, FindingRank.NEAR, extent=INT32_LIMIT // 2, line=5)
    stored_runs["99.0"] = make_run(near, release="99.0")
    stored_runs["0.5.23"] = make_run(make_finding(REACHED, FindingRank.REACHABLE, line=4))
    names = [Release("0.5.18"), Release("0.5.23"), Release("99.0")]
    monkeypatch.setattr(managed_releases, "list_releases", lambda: names)
    monkeypatch.setattr(managed_releases, "list_known_releases", lambda: names)
    ranked = execution._rank_record(replace(audit, release=label))
    assert list_headline(ranked) == headline
    # Of sources that are not there any more, each finding counts.
    assert len(ranked.red_findings) == (2 if "sglang" in label else 0)


def test_a_command_to_rehearse_names_a_release_that_can_be(
    audit: ReleaseAudit, stored_runs: dict[str, RehearsalRun], capsys: pytest.CaptureFixture[str]
) -> None:
    stored_runs["0.5.23"] = RUN
    ranking.rank_difference(audit, "0.5.23", "somewhere/sglang")
    text = capsys.readouterr().err
    assert "somewhere/sglang was not rehearsed" in text
    assert "unfix rehearse" not in text
    ranking.rank_difference(audit, "0.5.23", "0.5.18")
    assert "`unfix rehearse --all --release 0.5.18`" in capsys.readouterr().err
